package breaker

import (
	"sync"
	"sync/atomic"

	"github.com/levee-go/levee/internal/contain"
)

// maxChanges is how far behind a user's function may fall.
const maxChanges = 64

// A notifier tells a user's function of changes, outside every lock, one at a
// time and in order. It has a goroutine only while there is something to tell.
type notifier struct {
	tell   func(from, to State) // nil: nobody is told
	failed atomic.Uint64        // calls that panicked or called Goexit

	mu      sync.Mutex // guards what follows
	pending []change
	busy    bool // deliver is running
}

type change struct{ from, to State }

// push never blocks. The last change takes in what does not fit, so that each
// change still starts where the one before it ended.
func (n *notifier) push(from, to State) {
	if n.tell == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.pending) == maxChanges {
		n.pending[maxChanges-1].to = to
		return
	}
	n.pending = append(n.pending, change{from, to})
	if !n.busy {
		n.busy = true
		go n.deliver()
	}
}

func (n *notifier) deliver() {
	for {
		c, ok := n.next()
		if !ok {
			return
		}
		if <-contain.Go(func() error { n.tell(c.from, c.to); return nil }) != nil {
			n.failed.Add(1)
		}
	}
}

func (n *notifier) next() (change, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.pending) == 0 {
		n.busy = false
		return change{}, false
	}
	c := n.pending[0]
	n.pending = n.pending[1:]
	return c, true
}
