package redlock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/levee-go/levee/lock"
)

// join has server i count for the lease, while the lease stands: it takes the lock there,
// once more or for the first time, and gives the server the lease's fence. It tries again
// after a random time that grows to a third of the lease, and 5 s at most. The package
// comment says why this is safe.
func (l *Lease) join(i int) {
	if !l.begins(i) {
		return
	}
	defer l.quorum.calls.End()
	for pause := 20 * time.Millisecond; l.goesOn(i); pause = min(2*pause, l.quorum.o.Lease/3, 5*time.Second) {
		timer := time.NewTimer(rand.N(pause))
		select {
		case <-timer.C:
			l.joinNow(i)
		case <-l.ctx.Done():
		case <-l.quorum.closed:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// begins reports whether server i lacks, and nobody is at it yet.
func (l *Lease) begins(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.lacks(i) || l.members[i].joining || !l.quorum.calls.Begin() {
		return false
	}
	l.members[i].joining = true
	return true
}

// goesOn reports whether server i lacks still. If not, join has ended.
func (l *Lease) goesOn(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members[i].joining = l.lacks(i)
	return l.members[i].joining
}

// lacks reports whether the lease stands, and not on server i. With NoRenewal it is not
// taken there a second time: it would not end in time. The caller holds mu.
func (l *Lease) lacks(i int) bool {
	m := &l.members[i]
	lost := m.part != nil && m.part.Err() != nil
	return l.errLocked() == nil && l.phase == held && (!m.counts || lost) && !(lost && l.quorum.o.NoRenewal)
}

// joinNow is one attempt of join. The end of the lease does not cut it short: a lock whose
// answer has come can be given back at once, and also while the Quorum closes.
//
// The server counts only if a majority has confirmed the lease after this server granted the
// lock. Otherwise the lease could lose its majority, and have one again, unnoticed:
//
//  1. A has the lock on 1 and 2; 3 is free
//  2. server 2 forgets; B is granted the lock on 2 and 3, and gives it back
//  3. A joins on 3, and hears only then that it has lost 2
//
// Servers that have the lease still, when 3 is A's too, have given the lock to nobody.
func (l *Lease) joinNow(i int) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(l.ctx), l.quorum.timeout, errTooSlow)
	defer cancel()
	part, lost := l.part(i)
	if lost != nil {
		_ = lost.Unlock(ctx) // if the server knows of it still, it would keep us out
	}
	if part == nil {
		var err error
		if part, err = l.takeAgain(ctx, i); err != nil || !l.granted(i, part) {
			return
		}
	}
	if !l.confirmed(ctx) {
		return
	}
	if isLost(l.raise(ctx, i, part, l.fence)) {
		_ = part.Check(ctx) // which ends it, so that the next attempt takes the lock again
	}
}

// confirmed reports whether a majority of the servers says now that they have the lease.
func (l *Lease) confirmed(ctx context.Context) bool {
	l.mu.Lock()
	counting, _ := l.parts()
	l.mu.Unlock()
	return l.quorum.enough(l.quorum.each(ctx, counting, func(ctx context.Context, part *lock.Lease) error { return part.Check(ctx) }))
}

// part is the lease on server i, if there is one. One that was lost has no place any more.
func (l *Lease) part(i int) (part, lost *lock.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.members[i]
	if l.errLocked() == nil && m.part != nil && m.part.Err() != nil {
		lost, m.part, m.counts = m.part, nil, false
	}
	return m.part, lost
}

// takeAgain takes the lock on server i, if nobody has it there. MaxHold counts from when
// the lease began; if less than one lease is left of it, this is an error.
func (l *Lease) takeAgain(ctx context.Context, i int) (*lock.Lease, error) {
	node, o := l.quorum.nodes[i], l.quorum.parts
	if o.MaxHold > 0 {
		o.MaxHold = max(o.MaxHold-time.Since(l.taken), 1)
		o.Logger = o.Logger.With("server", i)
		node = node.With(o)
	}
	return node.TryLock(ctx, l.name)
}
