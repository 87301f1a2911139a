package flight

import (
	"context"
	"errors"
	"time"
)

// Who waits
//
// A flight runs on behalf of its callers, who come and go. Before it loads it may have
// to wait for its turn at the source. That is worth while until the last of them leaves,
// and how long they stay decides whether to wait at all, see [Group.Waiting].

// ErrDeserted is the cause of the end of a context of [Group.Waiting]: all callers have left.
var ErrDeserted = errors.New("flight: nobody waits any more")

// A crowd is those who wait for some flights of a group.
type crowd[R any] struct {
	context.Context
	end     context.CancelCauseFunc
	group   *Group[R]
	flights []*Flight[R]
}

// Waiting returns a context for what flights wait for before they load. It ends with ctx,
// and with ErrDeserted when all callers of flights have left; the callers who join after
// that have another flight. Its deadline is when the last of them leaves, and moves as callers
// come. If one of them has no deadline, it has none either, whatever ctx has. stop ends the
// context; a flight is in one Waiting at a time.
func (g *Group[R]) Waiting(ctx context.Context, flights ...*Flight[R]) (waiting context.Context, stop func()) {
	c := &crowd[R]{group: g, flights: flights}
	c.Context, c.end = context.WithCancelCause(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range flights {
		f.crowd = c
	}
	c.changed()
	return c, c.stop
}

func (c *crowd[R]) stop() {
	c.group.mu.Lock()
	defer c.group.mu.Unlock()
	for _, f := range c.flights {
		f.crowd = nil
	}
	c.end(nil)
}

// Deadline is that of the last to leave, or of the context that it was made from.
func (c *crowd[R]) Deadline() (deadline time.Time, ok bool) {
	c.group.mu.Lock()
	defer c.group.mu.Unlock()
	var last time.Time
	for _, f := range c.flights {
		switch {
		case f.waiting() == 0:
		case f.alone || f.apart:
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

// changed ends the context if nobody is left. The caller holds Group.mu.
func (c *crowd[R]) changed() {
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

// waiting is how many have joined and not left. A refresh never counts as deserted. The
// caller holds Group.mu.
func (f *Flight[R]) waiting() int {
	if f.alone || f.apart {
		return 1
	}
	return f.joined - len(f.left)
}

// arrived notes how long a caller stays. The caller holds Group.mu.
func (f *Flight[R]) arrived(ctx context.Context) {
	deadline, ok := ctx.Deadline()
	switch {
	case !ok:
		f.patient = true
	case deadline.After(f.deadline):
		f.deadline = deadline
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
	if f.crowd != nil {
		f.crowd.changed()
	}
}

// inherit makes next the flight of the callers of f beyond decidedAt. The caller holds
// Group.mu.
func (f *Flight[R]) inherit(next *Flight[R]) {
	next.joined = f.joined - f.decidedAt
	next.deadline, next.patient, next.fallback = f.deadline, f.patient, f.fallback
	for _, number := range f.left {
		if number > f.decidedAt {
			next.left = append(next.left, number-f.decidedAt)
		}
	}
}
