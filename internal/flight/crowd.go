package flight

import (
	"context"
	"errors"
	"time"
)

// Waiting callers
//
// A flight runs on behalf of its callers, who come and go. Before it loads it may have
// to wait for its turn at the source. Waiting is of use until the last caller leaves, and
// the callers' deadlines decide whether to wait at all, see [Group.Waiting].

// ErrDeserted is the cause with which a context of [Group.Waiting] ends when all callers have left.
var ErrDeserted = errors.New("flight: nobody waits any more")

// A crowd is the context of [Group.Waiting] for the callers of some flights.
type crowd struct {
	context.Context
	end     context.CancelCauseFunc
	group   *Group
	flights []*Flight
}

// Waiting returns a context for the wait of flights before they load. It ends with ctx, and
// with ErrDeserted when all callers of flights have left; callers who join after that go on to
// the next flight. Its deadline is the latest of the callers' deadlines, at most that of ctx, and
// moves as callers come. If a caller has no deadline, the context has none, even if ctx has one.
// stop ends the context. A flight is in one Waiting at a time.
func (g *Group) Waiting(ctx context.Context, flights ...*Flight) (waiting context.Context, stop func()) {
	c := &crowd{group: g, flights: flights}
	c.Context, c.end = context.WithCancelCause(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range flights {
		f.crowd = c
	}
	c.changed()
	return c, c.stop
}

func (c *crowd) stop() {
	c.group.mu.Lock()
	defer c.group.mu.Unlock()
	for _, f := range c.flights {
		f.crowd = nil
	}
	c.end(nil)
}

// Deadline returns the time when the last caller leaves or the context passed to Waiting ends, whichever
// is earlier. For a refresh it returns the deadline of that context.
func (c *crowd) Deadline() (deadline time.Time, ok bool) {
	c.group.mu.Lock()
	defer c.group.mu.Unlock()
	var last time.Time
	for _, f := range c.flights {
		switch {
		case f.waiting() == 0:
		case !f.kind.joined():
			return c.Context.Deadline()
		case f.patient:
			return time.Time{}, false
		case f.deadline.After(last):
			last = f.deadline
		}
	}
	if outer, ok := c.Context.Deadline(); ok && outer.Before(last) {
		return outer, true
	}
	return last, true
}

// changed ends the context if all callers have left. The caller holds Group.mu.
func (c *crowd) changed() {
	for _, f := range c.flights {
		if f.waiting() > 0 {
			return
		}
	}
	for _, f := range c.flights {
		f.desertedAt = f.joined
	}
	c.end(ErrDeserted)
}

// waiting returns how many callers have joined and not left; 1 for a refresh, which is never
// deserted. The caller holds Group.mu.
func (f *Flight) waiting() int {
	if !f.kind.joined() {
		return 1
	}
	return f.joined - len(f.left)
}

// arrived notes the deadline of a caller that joins. The caller holds Group.mu.
func (f *Flight) arrived(ctx context.Context) {
	deadline, ok := ctx.Deadline()
	switch {
	case !ok:
		f.patient = true
	case deadline.After(f.deadline):
		f.deadline = deadline
	}
}

// leave notes that the caller with number has left before the flight's end.
func (f *Flight) leave(number int) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	for f.over.Load() { // f ended meanwhile: leave the flight that the caller went on to
		if number <= f.decidedAt {
			return
		}
		number -= f.decidedAt
		f = f.next
	}
	f.left = append(f.left, number)
	if f.crowd != nil {
		f.crowd.changed()
	}
}

// inherit moves the callers of f beyond decidedAt to next. The caller holds Group.mu.
func (f *Flight) inherit(next *Flight) {
	next.joined = f.joined - f.decidedAt
	next.deadline, next.patient, next.fallback = f.deadline, f.patient, f.fallback
	for _, number := range f.left {
		if number > f.decidedAt {
			next.left = append(next.left, number-f.decidedAt)
		}
	}
}
