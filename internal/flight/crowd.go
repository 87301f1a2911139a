package flight

import (
	"context"
	"errors"
	"time"
)

// Who waits
//
// A flight runs on behalf of its callers, who come and go. Before it loads it may have
// to wait for its turn at the source, and what it may wait depends on them: no longer
// than the last of them stays, and not at all when nobody is left. A [Crowd] tells that
// of a flight, or of several that share a load.
//
// A refusal is the error of a load that was not begun for such a reason. It says
// something about these callers and nothing about the source or about callers with more
// time. So it goes to those who were there when the crowd was last asked; later ones go
// on to the next flight. It is held for those only who have a fallback. See
// [Flight.Refuse].

// ErrDeserted is the error of a crowd that has left.
var ErrDeserted = errors.New("flight: nobody waits any more")

// A Crowd is those who wait for some flights of a group.
type Crowd[R any] struct {
	group   *Group[R]
	flights []*Flight[R]
	done    chan struct{}
	inner   chan struct{}
	left    bool // done is closed; guarded by Group.mu
	inside  bool // inner is closed; so is it
}

// Crowd returns those who wait for flights. It is the only one of these flights from
// then on.
func (g *Group[R]) Crowd(flights ...*Flight[R]) *Crowd[R] {
	c := &Crowd[R]{group: g, flights: flights, done: make(chan struct{}), inner: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range flights {
		f.crowd, f.heardAt = c, f.joined
	}
	c.changed()
	return c
}

// Deadline returns when the last of the crowd leaves. It reports false if somebody stays
// until the end.
func (c *Crowd[R]) Deadline() (last time.Time, ok bool) {
	c.group.mu.Lock()
	defer c.group.mu.Unlock()
	for _, f := range c.flights {
		if !c.left { // else those who have joined since are not asked for any more
			f.heardAt = f.joined
		}
		switch {
		case f.waiting() == 0:
			continue
		case f.patient || f.alone || f.apart:
			return time.Time{}, false
		default:
			last = later(last, f.deadline)
		}
	}
	return last, true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Done is closed when all have left. Who joins after that finds the next flight.
func (c *Crowd[R]) Done() <-chan struct{} { return c.done }

// Err is ErrDeserted when Done is closed.
func (c *Crowd[R]) Err() error {
	c.group.mu.Lock()
	defer c.group.mu.Unlock()
	if c.left {
		return ErrDeserted
	}
	return nil
}

// Inner is closed when somebody in the crowd is a caller for whom Group.Inner reports
// true.
func (c *Crowd[R]) Inner() <-chan struct{} { return c.inner }

// changed closes the channels whose time has come. The caller holds Group.mu.
func (c *Crowd[R]) changed() {
	waiting, inside := false, false
	for _, f := range c.flights {
		waiting, inside = waiting || f.waiting() > 0, inside || f.inner
	}
	if inside && !c.inside {
		c.inside = true
		close(c.inner)
	}
	if !waiting && !c.left {
		c.left = true
		close(c.done)
		for _, f := range c.flights {
			f.heardAt = f.joined
		}
	}
}

// Inner reports whether a caller for whom Group.Inner reports true has joined.
func (f *Flight[R]) Inner() bool {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	return f.inner
}

// waiting is how many have joined and not left. A refresh never counts as deserted. The
// caller holds Group.mu.
func (f *Flight[R]) waiting() int {
	if f.alone || f.apart {
		return 1
	}
	return f.joined - len(f.left)
}

// arrived notes what the crowd has to know of a caller. The caller holds Group.mu.
func (f *Flight[R]) arrived(ctx context.Context) {
	if deadline, ok := ctx.Deadline(); ok {
		f.deadline = later(f.deadline, deadline)
	} else {
		f.patient = true
	}
	if f.inner || f.group.Inner == nil || !f.group.Inner(ctx) {
		return
	}
	if f.inner = true; f.crowd != nil {
		f.crowd.changed()
	}
}

// leave notes that a caller has left before the end.
func (f *Flight[R]) leave(number int) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	for f.over.Load() { // meanwhile
		if number <= f.decidedAt {
			return
		}
		number -= f.decidedAt
		f = f.next
	}
	f.left = append(f.left, number)
	if f.crowd != nil && f.waiting() == 0 {
		f.crowd.changed()
	}
}

// inherit makes next the flight of the callers of f beyond decidedAt. The caller holds
// Group.mu.
func (f *Flight[R]) inherit(next *Flight[R]) {
	next.joined = f.joined - f.decidedAt
	next.deadline, next.patient, next.inner = f.deadline, f.patient, f.inner
	for _, number := range f.left {
		if number > f.decidedAt {
			next.left = append(next.left, number-f.decidedAt)
		}
	}
}
