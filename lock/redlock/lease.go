package redlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/fence"
	"github.com/levee-go/levee/internal/wait"
	"github.com/levee-go/levee/lock"
)

// A Lease is a lock that this process holds on at least a majority of the servers, until it
// is released or lost. It may be used concurrently.
type Lease struct {
	quorum *Quorum
	name   string
	fence  int64
	taken  time.Time
	ctx    context.Context
	cancel context.CancelCauseFunc
	outer  *Lease // the lease with whose context the lock was taken

	mu      sync.Mutex // guards the fields below
	members []member   // one for each server
	phase   phase
	err     error // why it was lost
}

// A member is the part of a Lease on one server.
type member struct {
	part    *lock.Lease // nil: the server has not granted the lock
	counts  bool        // the server knows the lease's fence
	joining bool        // join runs
}

// stands reports whether the server has the lease and knows its fence.
func (m *member) stands() bool { return m.counts && m.part.Err() == nil }

// A phase is the state of a Lease: it is being taken, then held, then over. A Lease that is
// not granted goes from taking to over.
type phase int

const (
	taking phase = iota
	held
	over
)

type leaseKey struct{}

func (q *Quorum) newLease(ctx context.Context, name string) *Lease {
	l := &Lease{quorum: q, name: name, taken: time.Now(), members: make([]member, len(q.nodes))}
	l.outer, _ = ctx.Value(leaseKey{}).(*Lease)
	l.ctx, l.cancel = context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), leaseKey{}, l))
	return l
}

// heldBy reports whether ctx comes from a lease on the lock, or from a lease that was taken
// within such a lease: then its caller would wait for itself.
func (q *Quorum) heldBy(ctx context.Context, name string) bool {
	l, _ := ctx.Value(leaseKey{}).(*Lease)
	for ; l != nil; l = l.outer {
		if l.name == name && l.quorum.o.Prefix == q.o.Prefix && l.Err() == nil {
			return true
		}
	}
	return false
}

// granted notes that server i has granted the lock, which does not count yet. If the lease
// has ended meanwhile, or has the lock there from another call, it releases the lock and
// reports false.
func (l *Lease) granted(i int, part *lock.Lease) bool {
	l.mu.Lock()
	m := &l.members[i]
	fits := l.errLocked() == nil && (m.part == nil || m.part.Err() != nil)
	if fits {
		m.part, m.counts = part, false
	}
	l.mu.Unlock()
	if !fits {
		_ = part.Unlock(l.ctx)
		return false
	}
	context.AfterFunc(part.Context(), func() { l.join(i) }) // or tells that too few are left
	return true
}

// raise gives server i the lease's fence. Only then does the server count, since the order
// of fences relies on servers that know the last fence.
func (l *Lease) raise(ctx context.Context, i int, part *lock.Lease, to int64) error {
	if err := fence.Raise(ctx, part, to); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := &l.members[i]; l.errLocked() == nil && m.part == part { // a lease that was lost stays so
		m.counts = true
	}
	return nil
}

// begin marks the lease as held with this fence, if it stands on a majority of the servers.
// If not, it reports false.
func (l *Lease) begin(with int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loss() != nil {
		return false
	}
	l.phase, l.fence = held, with
	for i := range l.members {
		if l.lacks(i) {
			go l.join(i)
		}
	}
	return true
}

// end marks the lease as over, and returns the leases to release.
func (l *Lease) end() []*lock.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = over
	counting, others := l.parts()
	return append(counting, others...)
}

// parts returns the leases on the servers that count, and on the others. The caller holds mu.
func (l *Lease) parts() (counting, others []*lock.Lease) {
	for i := range l.members {
		switch m := &l.members[i]; {
		case m.counts:
			counting = append(counting, m.part)
		case m.part != nil:
			others = append(others, m.part)
		}
	}
	return counting, others
}

// loss returns nil if the lease stands on a majority of the servers, and otherwise the error
// of one server where it does not. The caller holds mu.
func (l *Lease) loss() (err error) {
	standing := 0
	for i := range l.members {
		if m := &l.members[i]; m.stands() {
			standing++
		} else if m.counts {
			err = m.part.Err()
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

// Context returns a context that ends when the lease is lost, before a majority of the
// servers can grant the lock to another, or released. Its cause then matches lock.ErrLost
// or is context.Canceled. It has the values of the context given to Lock.
func (l *Lease) Context() context.Context { return l.ctx }

// Fence returns a number larger than the fence of every earlier lease of the lock, as
// [lock.Lease.Fence] does.
func (l *Lease) Fence() int64 { return l.fence }

// Err returns nil as long as the lease is held, as far as this process knows, an error that
// matches lock.ErrLost after it was lost, and lock.ErrNotHeld after it was released.
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

// lose ends the lease, and releases the locks that a minority of the servers still has. The
// caller holds mu.
func (l *Lease) lose(why error) {
	counting, others := l.parts()
	l.err, l.members = why, make([]member, len(l.members))
	l.cancel(why)
	go func() { _ = l.quorum.giveBack(context.WithoutCancel(l.ctx), append(counting, others...)) }()
	if l.quorum.o.Hooks.Lost != nil {
		go l.quorum.tell(func() { l.quorum.o.Hooks.Lost(l.name, why) })
	}
}

// Remaining returns how long the lease lasts if it is not renewed, 0 if it is not held.
func (l *Lease) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.errLocked() != nil {
		return 0
	}
	counting, _ := l.parts()
	all := make([]time.Duration, len(counting))
	for i, part := range counting {
		all[i] = part.Remaining()
	}
	slices.Sort(all)
	return all[len(all)-l.quorum.majority()]
}

// Check reads from the servers whether the lease is held. It returns the same errors as
// [lock.Lease.Check].
func (l *Lease) Check(ctx context.Context) error {
	l.mu.Lock()
	err := l.errLocked()
	counting, _ := l.parts()
	l.mu.Unlock()
	if err != nil {
		return err
	}
	votes := l.quorum.each(ctx, counting, func(ctx context.Context, part *lock.Lease) error { return part.Check(ctx) })
	if err := l.Err(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", lock.ErrUnavailable, wait.Ended(ctx))
	}
	return l.quorum.verdict(votes)
}

// Unlock releases the lock, as [lock.Lease.Unlock] does. If the lease was lost before, the
// error matches lock.ErrLost, and if too few servers replied, lock.ErrUnavailable. A second
// Unlock returns lock.ErrNotHeld.
func (l *Lease) Unlock(ctx context.Context) error {
	l.mu.Lock()
	err := l.errLocked()
	counting, others := l.parts()
	returned := l.phase == over
	l.phase = over
	l.mu.Unlock()
	if returned {
		return err
	}
	l.cancel(nil)
	if len(others) > 0 {
		go func() { _ = l.quorum.giveBack(context.WithoutCancel(ctx), others) }()
	}
	released := l.quorum.giveBack(ctx, counting)
	if l.quorum.o.Hooks.Released != nil {
		l.quorum.tell(func() { l.quorum.o.Hooks.Released(l.name, time.Since(l.taken)) })
	}
	if err != nil {
		return err
	}
	return released
}
