package lock

import (
	"container/heap"
	"context"
	"time"
)

// A Lease is a lock that this process holds, until it is released or lost. It may be used
// concurrently. Reenter makes more handles of the same lease.
type Lease struct {
	locker   *locker
	watchdog *watchdog
	acq      *acquisition
	returned bool // this handle was released; guarded by watchdog.mu
}

// An acquisition is the state that the handles of a lease share. It has one grant, or
// several for LockAll.
type acquisition struct {
	watchdog *watchdog
	first    Lease // the first handle
	grants   []*grant
	fence    int64
	values   leaseValues
	ctx      context.Context
	cancel   context.CancelCauseFunc

	// Guarded by watchdog.mu.
	handles int   // handles that are not released yet
	err     error // why it was lost
}

// leaseValues is the parent of a lease's context. It has the values of the context that
// was given to Lock, but does not end with it. It also marks the context, so that a Lock of
// the same name finds that it would wait for itself; outer is the mark of the lease around.
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

// lease returns the first handle of a lease on grants, which the watchdog already has.
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

// heldBy reports whether ctx comes from a lease on the lock with this record, or from a
// lease that was taken within such a lease: then its caller would wait for itself.
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

// left returns how long the lease lasts if it is not renewed. The caller holds
// watchdog.mu.
func (a *acquisition) left(now time.Time) time.Duration {
	shortest := left(a.grants[0].deadline, now)
	for _, g := range a.grants[1:] {
		shortest = min(shortest, left(g.deadline, now))
	}
	return shortest
}

// Context returns a context that ends when the lease is lost, before the server can grant
// the lock to another, or released. Its cause then matches ErrLost or is
// context.Canceled. It has the values of the context given to Lock.
func (s *Lease) Context() context.Context { return s.acq.ctx }

// Fence returns a number that is larger than the fence of every earlier lease of the lock,
// and never changes. With it the protected resource can refuse a holder that does not know
// yet that it has lost the lock; see the package comment. Readers have the fence of the
// writer before them. A permit has that of a later one if Redis was slow to grant it.
func (s *Lease) Fence() int64 { return s.acq.fence }

// Err returns nil as long as the lease is held, as far as this process knows, an error
// that matches ErrLost after the lease was lost, and ErrNotHeld after this handle was
// released.
func (s *Lease) Err() error {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	return s.errLocked()
}

// errLocked is Err for callers that hold watchdog.mu. It looks at the clock itself, since
// the watchdog may not have run yet.
func (s *Lease) errLocked() error {
	if s.returned {
		return ErrNotHeld
	}
	if s.acq.err == nil {
		s.watchdog.expire(s.acq.grants, time.Now())
	}
	return s.acq.err
}

// Remaining returns how long the lease lasts if it is not renewed, 0 if it is not held.
func (s *Lease) Remaining() time.Duration {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	if s.errLocked() != nil {
		return 0
	}
	return max(s.acq.left(time.Now()), 0)
}

// Check reads from Redis whether the lease is held, with one round trip for each lock. It
// returns nil if it is, an error that matches ErrLost if it is not, ErrNotHeld after this
// handle was released, and an error that matches ErrUnavailable if Redis did not reply,
// which says nothing about the lease, and then also the cause of ctx if that has ended.
func (s *Lease) Check(ctx context.Context) error {
	for _, g := range s.acq.grants {
		if err := s.Err(); err != nil {
			return err
		}
		r, err := s.locker.store.change(ctx, renewal{grant: g})
		if err != nil {
			return err
		}
		if r.answer != answerOK {
			s.watchdog.lose(g, r.answer.cause())
		}
	}
	return s.Err()
}

// Reenter returns another handle of the lease, for a function further down that unlocks
// what it locks: the locks are released with the last handle. It does not call Redis.
// It fails with the error of Err. There is no other way for a holder to take the lock again:
// a second Lock waits, or fails with ErrDeadlock.
func (s *Lease) Reenter() (*Lease, error) {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	if err := s.errLocked(); err != nil {
		return nil, err
	}
	s.acq.handles++
	return &Lease{locker: s.locker, watchdog: s.watchdog, acq: s.acq}, nil
}

// Unlock releases the lock, even if ctx has ended. It returns at most 100 ms after the end
// of ctx. If Redis does not reply, Unlock goes on in the background and the error matches
// ErrUnavailable. If the lease was lost before, the error matches ErrLost: another holder
// may have worked at the same time. A second Unlock returns ErrNotHeld and never touches a
// later holder's lock.
//
// Unlock after the commit of the transaction that the lock protects, not before.
func (s *Lease) Unlock(ctx context.Context) error { return s.unlock(ctx, 0) }

// unlock is Unlock; keep is how long the work counts as done (Once).
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

// endHandle ends this handle, and reports whether it was the last one. The error is what
// Err returned until then.
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

// endOnlyHandle ends this handle, but fails if the lease has others or is not held.
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

// windDown stops the renewals after one more lease.
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
