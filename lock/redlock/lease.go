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

	mu      sync.Mutex // guards what follows
	members []member   // one for each server
	phase   phase
	err     error // why it was lost
}

// A member is what a Lease has on one server.
type member struct {
	part    *lock.Lease // nil: nothing yet
	counts  bool        // the server knows the lease's fence
	joining bool        // join is at work
}

// stands reports whether the server keeps others out and knows the lease's fence.
func (m *member) stands() bool { return m.counts && m.part.Err() == nil }

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
	l := &Lease{quorum: q, name: name, taken: time.Now(), members: make([]member, len(q.nodes))}
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

// granted takes the lock that server i has granted, which does not count yet, and reports
// whether there is a place for it. If not, the lock is given back: the lease has ended
// meanwhile, or another call has been granted the lock there.
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

// raise gives server i the lease's fence. Only then does the server count: its part of the
// fences' order is to know the last one.
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

// begin says that the lock is held with this fence, if a majority of the servers knows it.
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

// end says that the lock is held no longer, and returns what is to be given back.
func (l *Lease) end() []*lock.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = over
	counting, others := l.parts()
	return append(counting, others...)
}

// parts are the leases on the servers that count, and on the others. The caller holds mu.
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

// loss is nil if the lease stands on a majority of the servers, and else why it does not on
// one of them. The caller holds mu.
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

// Context ends when the lease is lost, before a majority of the servers can give the lock
// to another, and when it is given back. Its cause then matches lock.ErrLost or is
// context.Canceled. It has the values of the context given to Lock.
func (l *Lease) Context() context.Context { return l.ctx }

// Fence is larger than that of every lease of the lock before, as [lock.Lease.Fence].
func (l *Lease) Fence() int64 { return l.fence }

// Err returns nil as long as the lease is held, as far as this process knows; an error that
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
	counting, others := l.parts()
	l.err, l.members = why, make([]member, len(l.members))
	l.cancel(why)
	go func() { _ = l.quorum.giveBack(context.WithoutCancel(l.ctx), append(counting, others...)) }()
	if l.quorum.o.Hooks.Lost != nil {
		go l.quorum.tell(func() { l.quorum.o.Hooks.Lost(l.name, why) })
	}
}

// Remaining is how long the lease is held if it is not renewed, 0 if it does not.
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

// Check reads from the servers whether the lease is held. The errors are those of
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

// Unlock gives the lock back, as [lock.Lease.Unlock] does. If the lease was lost before, the
// error matches lock.ErrLost, and if too few servers answered, lock.ErrUnavailable. A second
// Unlock gives lock.ErrNotHeld.
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
