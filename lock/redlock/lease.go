package redlock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/lock"
)

// A Lease is a lock that this process holds, on a majority of the servers at least, until
// Unlock. It may be used concurrently.
type Lease struct {
	quorum *Quorum
	name   string
	fence  int64
	taken  time.Time
	ctx    context.Context
	cancel context.CancelCauseFunc
	outer  *Lease // whose context the lock was taken with

	mu    sync.Mutex // guards what follows
	parts []*lock.Lease
	phase phase
	err   error // why it was lost
}

// A phase is where a Lease stands: it is taken, held, and given back. One that is not
// granted goes from taking to over.
type phase int

const (
	taking phase = iota
	held
	over
)

type leaseKey struct{}

func (q *Quorum) newLease(ctx context.Context, name string) *Lease {
	l := &Lease{quorum: q, name: name, taken: time.Now()}
	l.outer, _ = ctx.Value(leaseKey{}).(*Lease)
	l.ctx, l.cancel = context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), leaseKey{}, l))
	return l
}

// heldBy reports whether ctx is that of a lease on the lock, or of one that was taken
// within such a lease: to wait for the lock would be to wait for oneself.
func (q *Quorum) heldBy(ctx context.Context, name string) bool {
	l, _ := ctx.Value(leaseKey{}).(*Lease)
	for ; l != nil; l = l.outer {
		if l.name == name && l.quorum.o.Prefix == q.o.Prefix && l.Err() == nil {
			return true
		}
	}
	return false
}

// join adds the lease on one server. One that comes when the lock is held already makes it
// stand on one server more; one that comes too late is given back.
func (l *Lease) join(part *lock.Lease) {
	l.mu.Lock()
	late := l.phase == over || l.err != nil
	if !late {
		l.parts = append(l.parts, part)
	}
	l.mu.Unlock()
	if late {
		_ = part.Unlock(l.ctx)
		return
	}
	context.AfterFunc(part.Context(), func() { _ = l.Err() }) // which tells that too few are left
}

// begin says that the lock is held with this fence, if it still is.
func (l *Lease) begin(fence int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loss() != nil {
		return false
	}
	l.phase, l.fence = held, fence
	return true
}

// end says that the lock is held no longer, and returns what is to be given back.
func (l *Lease) end() []*lock.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = over
	return l.parts
}

// loss is nil if the leases on a majority of the servers stand, and else why one of them
// does not. The caller holds mu.
func (l *Lease) loss() (err error) {
	standing := 0
	for _, part := range l.parts {
		if lost := part.Err(); lost != nil {
			err = lost
		} else {
			standing++
		}
	}
	switch {
	case standing >= l.quorum.majority():
		return nil
	case err == nil:
		return errNoMajority
	}
	return err
}

// Context ends when the lease is lost, before a majority of the servers can give the lock
// to another, and when it is given back. Its cause then matches lock.ErrLost or is
// context.Canceled. It has the values of the context given to Lock.
func (l *Lease) Context() context.Context { return l.ctx }

// Fence is larger than that of every lease of the lock before, as [lock.Lease.Fence].
func (l *Lease) Fence() int64 { return l.fence }

// Err returns nil as long as the lease stands, as far as this process knows; an error that
// matches lock.ErrLost when it was lost, and lock.ErrNotHeld when it was given back.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.errLocked()
}

// errLocked is Err for callers that hold mu.
func (l *Lease) errLocked() error {
	switch {
	case l.phase == taking:
		return nil
	case l.phase == over:
		return lock.ErrNotHeld
	case l.err == nil:
		if why := l.loss(); why != nil {
			l.lose(why)
		}
	}
	return l.err
}

// lose ends the lease. What a minority of the servers still holds is given back. The caller
// holds mu.
func (l *Lease) lose(why error) {
	parts := l.parts
	l.err, l.parts = why, nil
	l.cancel(why)
	go func() { _ = l.quorum.giveBack(context.WithoutCancel(l.ctx), parts) }()
	if l.quorum.o.Hooks.Lost != nil {
		go l.quorum.o.Hooks.Lost(l.name, why)
	}
}

// Remaining is how long the lease stands if it is not renewed, 0 if it does not.
func (l *Lease) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.errLocked() != nil {
		return 0
	}
	all := make([]time.Duration, len(l.parts))
	for i, part := range l.parts {
		all[i] = part.Remaining()
	}
	slices.Sort(all)
	return all[len(all)-l.quorum.majority()]
}

// Check asks the servers whether the lease stands. The errors are those of
// [lock.Lease.Check].
func (l *Lease) Check(ctx context.Context) error {
	l.mu.Lock()
	err, parts := l.errLocked(), slices.Clone(l.parts)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	votes := l.quorum.each(ctx, parts, func(ctx context.Context, part *lock.Lease) error { return part.Check(ctx) })
	if err := l.Err(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return l.quorum.verdict(votes)
}

// Unlock gives the lock back, as [lock.Lease.Unlock] does. If the lease was lost before, the
// error matches lock.ErrLost, and if too few servers answered, lock.ErrUnavailable. A second
// Unlock gives lock.ErrNotHeld.
func (l *Lease) Unlock(ctx context.Context) error {
	l.mu.Lock()
	err, parts := l.errLocked(), l.parts
	returned := l.phase == over
	l.phase = over
	l.mu.Unlock()
	if returned {
		return err
	}
	l.cancel(nil)
	released := l.quorum.giveBack(ctx, parts)
	if l.quorum.o.Hooks.Released != nil {
		l.quorum.o.Hooks.Released(l.name, time.Since(l.taken))
	}
	if err != nil {
		return err
	}
	return released
}
