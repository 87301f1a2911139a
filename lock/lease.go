package lock

import (
	"container/heap"
	"context"
	"time"
)

// A Lease is a lock that is held, or was. It may be used concurrently.
//
// It is one handle of an acquisition; Reenter makes more of them.
type Lease struct {
	locker   *locker
	watchdog *watchdog
	acq      *acquisition
	returned bool // this handle was given back; guarded by watchdog.mu
}

// An acquisition is what the handles of a lease share. It has one grant, or several
// of LockAll.
type acquisition struct {
	watchdog *watchdog
	first    Lease // handle
	grants   []*grant
	fence    int64
	values   leaseValues
	ctx      context.Context
	cancel   context.CancelCauseFunc

	// Guarded by watchdog.mu.
	handles int   // that were not given back
	err     error // why it was lost
}

// leaseValues gives the context of a lease the values of the context that was given
// to Lock, but not its end. It is also the mark by which a Lock of the same name
// finds that it would wait for itself; outer is the mark of the lease around it.
type leaseValues struct {
	context.Context
	acq   *acquisition
	outer *leaseValues
}

type leaseKey struct{}

func (v *leaseValues) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
func (v *leaseValues) Done() <-chan struct{}                   { return nil }
func (v *leaseValues) Err() error                              { return nil }
func (v *leaseValues) Value(key any) any {
	if key == (leaseKey{}) {
		return v
	}
	return context.WithoutCancel(v.Context).Value(key)
}

// lease makes the first handle of grants that the watchdog has already.
func (l *locker) lease(ctx context.Context, grants []*grant) *Lease {
	a := &acquisition{watchdog: l.watchdog, grants: grants, handles: 1}
	a.first = Lease{locker: l, watchdog: l.watchdog, acq: a}
	outer, _ := ctx.Value(leaseKey{}).(*leaseValues)
	a.values = leaseValues{ctx, a, outer}
	a.ctx, a.cancel = context.WithCancelCause(&a.values)
	l.watchdog.mu.Lock()
	defer l.watchdog.mu.Unlock()
	for _, g := range grants {
		a.fence = max(a.fence, g.fence)
		g.acq = a
		if g.err != nil { // it was lost between its grant and now
			a.lose(g.err)
		}
	}
	return &a.first
}

// heldBy reports whether ctx is that of a lease on the lock with this record, or of
// one that was taken within such a lease: to wait for the lock would be to wait for
// oneself.
func heldBy(ctx context.Context, record string) bool {
	mark, _ := ctx.Value(leaseKey{}).(*leaseValues)
	for ; mark != nil; mark = mark.outer {
		for _, g := range mark.acq.grants {
			if g.record() == record && mark.acq.stands() {
				return true
			}
		}
	}
	return false
}

func (a *acquisition) stands() bool {
	a.watchdog.mu.Lock()
	defer a.watchdog.mu.Unlock()
	return a.handles > 0 && a.err == nil
}

// lose ends the acquisition. The caller holds watchdog.mu.
func (a *acquisition) lose(err error) {
	if a.err == nil && a.handles > 0 {
		a.err = err
		a.cancel(err)
	}
}

// left is how long the lease stands if it is not renewed. The caller holds
// watchdog.mu.
func (a *acquisition) left(now time.Time) time.Duration {
	shortest := left(a.grants[0].deadline, now)
	for _, g := range a.grants[1:] {
		shortest = min(shortest, left(g.deadline, now))
	}
	return shortest
}

// Context ends when the lease is lost, before the server can give the lock to
// another, and when it is given back. Its cause then matches ErrLost or is
// context.Canceled. It has the values of the context given to Lock.
func (s *Lease) Context() context.Context { return s.acq.ctx }

// Fence is larger than that of every lease of the lock before, and stays the same
// for the life of the lease. By it the protected resource can refuse a holder that does
// not know yet that it has lost the lock; see the package comment. Readers have the
// fence of the writer before them.
func (s *Lease) Fence() int64 { return s.acq.fence }

// Err returns nil as long as the lease is held, as far as this process knows; an error
// that matches ErrLost when it was lost, and ErrNotHeld when it was given back.
func (s *Lease) Err() error {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	return s.errLocked()
}

// errLocked is Err for callers that hold watchdog.mu. It looks at the clock itself:
// the watchdog may not have had the processor yet.
func (s *Lease) errLocked() error {
	if s.returned {
		return ErrNotHeld
	}
	if s.acq.err == nil {
		s.watchdog.expire(s.acq.grants, time.Now())
	}
	return s.acq.err
}

// Remaining is how long the lease is held if it is not renewed, 0 if it does not.
func (s *Lease) Remaining() time.Duration {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	if s.errLocked() != nil {
		return 0
	}
	return max(s.acq.left(time.Now()), 0)
}

// Check reads from Redis whether the lease is held, one round trip for each lock. It
// returns nil if so, an error that matches ErrLost if not, ErrNotHeld after the
// lease was given back, and ErrUnavailable or the context's cause if Redis did not
// answer, which says nothing about the lease.
func (s *Lease) Check(ctx context.Context) error {
	for _, g := range s.acq.grants {
		if err := s.Err(); err != nil {
			return err
		}
		r, err := s.locker.redis.check(ctx, g)
		if err != nil {
			return err
		}
		if r.answer != answerOK {
			s.watchdog.lose(g, r.answer.cause())
		}
	}
	return s.Err()
}

// Reenter returns another handle of the lease, for code further down that unlocks
// what it locks: the locks are given back with the last handle. It does not call Redis.
// The error is that of Err. There is no other way for a holder to enter again: a second
// Lock waits, whoever calls it.
func (s *Lease) Reenter() (*Lease, error) {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	if err := s.errLocked(); err != nil {
		return nil, err
	}
	s.acq.handles++
	return &Lease{locker: s.locker, watchdog: s.watchdog, acq: s.acq}, nil
}

// Unlock gives the lock back. It does so even if ctx has ended, holds its caller
// for a tenth of a second beyond that at most, and goes on in the background if
// Redis does not answer; the error then matches ErrUnavailable. If the lease was
// lost before, the error matches ErrLost: another holder may have worked at the same
// time. A second Unlock gives ErrNotHeld and never touches a later holder's lock.
//
// Unlock after the commit of the transaction that the lock protects, not before.
func (s *Lease) Unlock(ctx context.Context) error { return s.unlock(ctx, 0) }

// unlock is Unlock; keep is how long the work counts as done (once).
func (s *Lease) unlock(ctx context.Context, keep time.Duration) error {
	last, err := s.endHandle()
	if !last {
		return err
	}
	s.acq.cancel(nil)
	if released := s.locker.releaseAll(ctx, s.acq.grants, keep); err == nil {
		err = released
	}
	return err
}

// endHandle ends this handle, and reports whether it was the last one. The error is
// that of Err before.
func (s *Lease) endHandle() (last bool, err error) {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	err = s.errLocked()
	if s.returned {
		return false, err
	}
	s.returned = true
	s.acq.handles--
	return s.acq.handles == 0, err
}

// endOnlyHandle is endHandle for a lease that must have no other handles.
func (s *Lease) endOnlyHandle() error {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	if err := s.errLocked(); err != nil {
		return err
	}
	if s.acq.handles > 1 {
		return badConfig("the lease has %d other handles", s.acq.handles-1)
	}
	s.returned = true
	s.acq.handles--
	return nil
}

// windDown ends the renewals after one lease more.
func (s *Lease) windDown() {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	for _, g := range s.acq.grants {
		g.stopRenewing(time.Now().Add(g.o.Lease))
		if g.watched {
			heap.Fix(&s.watchdog.grants, g.index)
		}
	}
}
