package guard

import (
	"sync"

	"github.com/levee-go/levee/internal/contain"
)

// maxChanges is how many changes may be pending.
const maxChanges = 64

// A hook calls the user's function with each change of state: without any mutex, one
// at a time and in order. It has a goroutine only while changes are pending.
type hook struct {
	fn     func(from, to State) // the user's; nil: there is none
	failed func(error)          // called if fn panicked or called Goexit

	mu      sync.Mutex // guards pending
	pending []change   // fn is being called with the first
}

type change struct{ from, to State }

// push adds a change and never blocks. If pending is full, its last change is extended
// to the state to, so that each change starts where the one before it ended.
func (h *hook) push(from, to State) {
	if h.fn == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.pending); n == maxChanges {
		h.pending[n-1].to = to
		return
	}
	h.pending = append(h.pending, change{from, to})
	if len(h.pending) == 1 {
		go h.tell(h.pending[0])
	}
}

func (h *hook) tell(c change) {
	for more := true; more; c, more = h.next() {
		if err := <-contain.Go(func() error { h.fn(c.from, c.to); return nil }); err != nil {
			h.failed(err)
		}
	}
}

// next removes the first pending change and returns the one after it, if any.
func (h *hook) next() (change, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending = h.pending[1:]
	if len(h.pending) == 0 {
		return change{}, false
	}
	return h.pending[0], true
}
