package redistest

import (
	"slices"
	"sync"
)

// A rule changes what becomes of the replies to some commands.
type rule struct {
	command string
	left    int // replies it is still for
	// act returns the bytes to pass on, nil for none. It may wait, and then the
	// replies behind this one wait with it.
	act func(l *link, reply []byte) []byte
}

func (p *FaultProxy) add(n int, command string, act func(l *link, reply []byte) []byte) {
	p.set(func() {
		p.rules = slices.DeleteFunc(p.rules, func(r *rule) bool { return r.left == 0 })
		p.rules = append(p.rules, &rule{command, n, act})
	})
}

// match returns the oldest rule for a command, and counts it as used.
func (p *FaultProxy) match(command []string) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, rule := range p.rules {
		if rule.left > 0 && isCommand(command, rule.command) {
			rule.left--
			return rule
		}
	}
	return nil
}

// DropReplies loses the next n replies to a command: the server executes it, the
// client hears nothing, neither of this nor of anything later on that connection,
// until it gives up waiting.
func (p *FaultProxy) DropReplies(n int, command string) {
	p.add(n, command, func(l *link, _ []byte) []byte {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mute = true
		return nil
	})
}

// CutReplies resets the connection in place of the next n replies to a command:
// like DropReplies, but the client learns of it at once.
func (p *FaultProxy) CutReplies(n int, command string) {
	p.add(n, command, func(l *link, _ []byte) []byte {
		l.reset()
		return nil
	})
}

// HoldReply keeps the next reply to a command back. The channel is closed when
// it is there, so the server has executed the command and the client does not
// know; release lets it go on its way.
func (p *FaultProxy) HoldReply(command string) (held <-chan struct{}, release func()) {
	return p.hold(command, func(_ *link, reply []byte) []byte { return reply })
}

// HoldAndCut is HoldReply for a reply that does not arrive: cut resets its connection, and no
// other.
func (p *FaultProxy) HoldAndCut(command string) (held <-chan struct{}, cut func()) {
	return p.hold(command, func(l *link, _ []byte) []byte {
		l.reset()
		return nil
	})
}

func (p *FaultProxy) hold(command string, then func(l *link, reply []byte) []byte) (held <-chan struct{}, release func()) {
	caught, free := make(chan struct{}), make(chan struct{})
	p.add(1, command, func(l *link, reply []byte) []byte {
		close(caught)
		select {
		case <-free:
		case <-l.done:
		}
		return then(l, reply)
	})
	return caught, sync.OnceFunc(func() { close(free) })
}

// RewriteReplies passes on, in place of each of the next n replies to a command,
// what change makes of it: bytes of the Redis protocol, or of anything else.
func (p *FaultProxy) RewriteReplies(n int, command string, change func(reply []byte) []byte) {
	p.add(n, command, func(_ *link, reply []byte) []byte { return change(reply) })
}

// SwapReplies exchanges the replies of the next n pairs of commands that are
// under way on two connections. The first of a pair waits for the second.
func (p *FaultProxy) SwapReplies(n int, command string) {
	var x exchange
	p.add(2*n, command, x.swap)
}

// An exchange gives each of two links the other's reply.
type exchange struct {
	mu      sync.Mutex
	waiting *offer // guarded by mu
}

type offer struct {
	link  *link
	reply []byte
	other chan []byte // takes one
}

func (x *exchange) swap(l *link, reply []byte) []byte {
	x.mu.Lock()
	if first := x.waiting; first != nil {
		x.waiting = nil
		x.mu.Unlock()
		first.other <- reply
		return first.reply
	}
	mine := &offer{l, reply, make(chan []byte, 1)}
	x.waiting = mine
	x.mu.Unlock()
	select {
	case other := <-mine.other:
		return other
	case <-l.done:
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.waiting == mine {
			x.waiting = nil
		}
		return nil
	}
}
