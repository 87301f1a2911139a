package lock

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"
)

// A Lease is a lock that is held, or was. It may be used concurrently.
type Lease struct {
	c    *core
	g    *grip
	done bool // given back; guarded by keeper.mu
}

// A grip is what the handles of one acquisition share: one hold, or several of LockAll.
type grip struct {
	k      *keeper
	values values
	ctx    context.Context
	cancel context.CancelCauseFunc
	holds  []*hold
	fence  int64

	refs int   // handles not given back; guarded by keeper.mu
	err  error // why it was lost; guarded by keeper.mu
}

// values is what the context of a lease has of the one it was taken with: not its
// end. It also is the mark by which it is noticed when somebody would wait for
// himself.
type values struct {
	context.Context
	g     *grip
	outer *values
}

type heldKey struct{}

func (v *values) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
func (v *values) Done() <-chan struct{}                   { return nil }
func (v *values) Err() error                              { return nil }
func (v *values) Value(key any) any {
	if key == (heldKey{}) {
		return v
	}
	return context.WithoutCancel(v.Context).Value(key)
}

// lease makes the handle of holds that the keeper has.
func (c *core) lease(ctx context.Context, holds ...*hold) *Lease {
	g := &grip{k: c.keeper, holds: holds, refs: 1}
	outer, _ := ctx.Value(heldKey{}).(*values)
	g.values = values{ctx, g, outer}
	g.ctx, g.cancel = context.WithCancelCause(&g.values)
	c.keeper.mu.Lock()
	defer c.keeper.mu.Unlock()
	for _, h := range holds {
		g.fence = max(g.fence, h.fence)
		h.grip = g
		if h.err != nil { // since it was granted
			g.lose(h.err)
		}
	}
	return &Lease{c: c, g: g}
}

// holds tells whether ctx is that of a lease on a lock.
func (k *keeper) holds(ctx context.Context, record string) bool {
	mark, _ := ctx.Value(heldKey{}).(*values)
	for ; mark != nil; mark = mark.outer {
		for _, h := range mark.g.holds {
			if h.record() == record && mark.g.alive() {
				return true
			}
		}
	}
	return false
}

func (g *grip) alive() bool {
	g.k.mu.Lock()
	defer g.k.mu.Unlock()
	return g.refs > 0 && g.err == nil
}

// lose ends the grip. The caller holds keeper.mu.
func (g *grip) lose(err error) {
	if g.err == nil && g.refs > 0 {
		g.err = err
		g.cancel(err)
	}
}

// Context ends when the lease is lost, before the server can give the lock to
// another, and when it is given back. Its cause then matches ErrLost or is
// context.Canceled. It has the values of the context given to Lock.
func (s *Lease) Context() context.Context { return s.g.ctx }

// Fence is larger than that of every lease of the lock before, and stays the same
// for the life of the lease. What the lock protects can refuse a holder who does
// not know yet that he has lost it; see the package comment. Readers have that of
// the writer before them.
func (s *Lease) Fence() int64 { return s.g.fence }

// Err returns nil as long as the lease stands, by what this process knows; an
// error that matches ErrLost when it was lost, and ErrNotHeld when it was given back.
func (s *Lease) Err() error {
	s.g.k.mu.Lock()
	defer s.g.k.mu.Unlock()
	return s.errLocked()
}

func (s *Lease) errLocked() error {
	if s.done {
		return ErrNotHeld
	}
	if s.g.err == nil && s.g.left(time.Now()) <= 0 {
		for _, h := range s.g.holds {
			if left(h.deadline, time.Now()) <= 0 {
				h.loseLocked(ErrExpired)
			}
		}
	}
	return s.g.err
}

// left is how long the lease stands if it is not renewed. The caller holds keeper.mu.
func (g *grip) left(now time.Time) time.Duration {
	shortest := left(g.holds[0].deadline, now)
	for _, h := range g.holds[1:] {
		shortest = min(shortest, left(h.deadline, now))
	}
	return shortest
}

// Remaining is how long the lease stands if it is not renewed, 0 if it does not.
func (s *Lease) Remaining() time.Duration {
	s.g.k.mu.Lock()
	defer s.g.k.mu.Unlock()
	if s.errLocked() != nil {
		return 0
	}
	return max(s.g.left(time.Now()), 0)
}

// Check asks Redis whether the lease stands, one round trip for each lock. It
// returns nil if so, an error that matches ErrLost if not, ErrNotHeld after the
// lease was given back, and ErrUnavailable or the context's cause if Redis did not
// answer, which says nothing about the lease.
func (s *Lease) Check(ctx context.Context) error {
	for _, h := range s.g.holds {
		if err := s.Err(); err != nil {
			return err
		}
		r, err := s.c.store.renew(ctx, h, 0, 0, "")
		if err != nil {
			return err
		}
		if r.what != "ok" {
			h.lose(verdict(r.what))
		}
	}
	return s.Err()
}

// Unlock gives the lock back. It does so even if ctx has ended, holds its caller
// for a tenth of a second beyond that at most, and goes on in the background if
// Redis does not answer; the error then matches ErrUnavailable. If the lease was
// lost before, the error matches ErrLost: what was done under it may have been done
// at the same time as somebody else's. A second Unlock gives ErrNotHeld and never
// touches a later holder's lock.
//
// Give back a lock that protects a transaction after the transaction has
// committed, not before.
func (s *Lease) Unlock(ctx context.Context) error { return s.unlock(ctx, 0) }

func (s *Lease) unlock(ctx context.Context, keep time.Duration) error {
	err, last := s.endHandle()
	if !last {
		return err
	}
	s.g.cancel(nil)
	if result := s.giveBack(ctx, keep); err == nil {
		err = result
	}
	return err
}

// giveBack releases the holds.
func (s *Lease) giveBack(ctx context.Context, keep time.Duration) error {
	if len(s.g.holds) == 1 {
		return s.c.giveBack(ctx, s.g.holds[0], keep)
	}
	results := make([]error, len(s.g.holds))
	var all sync.WaitGroup
	for i, h := range s.g.holds {
		all.Go(func() { results[i] = s.c.giveBack(ctx, h, keep) })
	}
	all.Wait()
	return errors.Join(results...)
}

// endHandle ends this handle, and tells whether it was the last one.
func (s *Lease) endHandle() (err error, last bool) {
	s.g.k.mu.Lock()
	defer s.g.k.mu.Unlock()
	err = s.errLocked()
	if s.done {
		return err, false
	}
	s.done = true
	s.g.refs--
	return err, s.g.refs == 0
}

// giveBack releases a hold, in the background if that takes too long.
func (c *core) giveBack(ctx context.Context, h *hold, keep time.Duration) error {
	c.keeper.remove(h)
	if h.hooks.Released != nil {
		defer func() { h.hooks.Released(h.name, time.Since(h.taken)) }()
	}
	release := func(ctx context.Context) (string, error) {
		return c.store.release(ctx, &h.target, h.owner, h.fence, h.ends, false, keep)
	}
	patient, cancel := detach(ctx)
	defer cancel()
	what, err := release(patient)
	if err != nil {
		if errors.Is(err, ErrConflict) {
			return &joined{lost(ErrStateLost), err}
		}
		until := time.Now().Add(h.lease)
		c.background(func(ctx context.Context) error {
			return c.insist(ctx, until, func(ctx context.Context) error { _, err := release(ctx); return err })
		})
		if patient.Err() != nil {
			return &joined{ErrUnavailable, end(patient)}
		}
		return err
	}
	switch what {
	case "ok", "again", "past":
		return nil
	}
	return lost(verdict(what))
}

// grace is how long a lock is given back after its caller's context has ended.
const grace = 100 * time.Millisecond

// detach returns a context that ends a little after ctx.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(grace, func() { cancel(context.Cause(ctx)) })
	})
	return inner, func() { stop(); cancel(nil) }
}

// windDown ends the renewals after one lease more.
func (s *Lease) windDown() {
	s.g.k.mu.Lock()
	defer s.g.k.mu.Unlock()
	for _, h := range s.g.holds {
		if last := time.Now().Add(h.lease); h.last.IsZero() || last.Before(h.last) {
			h.last = last
			if h.kept {
				heap.Fix(&s.g.k.heap, h.index)
			}
		}
	}
}
