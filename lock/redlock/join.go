package redlock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/levee-go/levee/lock"
)

// join makes server i count for the lease, as long as the lease is held: it takes the lock
// there, again or for the first time, and gives the server the lease's fence. It tries again
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

// begins reports whether server i is missing and no join for it runs yet, and notes that one does.
func (l *Lease) begins(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.lacks(i) || l.members[i].joining || !l.quorum.calls.Begin() {
		return false
	}
	l.members[i].joining = true
	return true
}

// goesOn reports whether server i is still missing. If not, it notes that join has ended.
func (l *Lease) goesOn(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members[i].joining = l.lacks(i)
	return l.members[i].joining
}

// lacks reports whether the lease is held, but not on server i. It is false if server i has
// lost the lease and NoRenewal is set: taken there again, the lease would not end in time.
// The caller holds mu.
func (l *Lease) lacks(i int) bool {
	m := &l.members[i]
	lost := m.part != nil && m.part.Err() != nil
	return l.errLocked() == nil && l.phase == held && (!m.counts || lost) && !(lost && l.quorum.o.NoRenewal)
}

// joinNow makes one attempt of join. The end of the lease does not cut it short: when the
// reply has come, the lock can be released at once, also while the Quorum closes.
//
// The server counts only if a majority has confirmed the lease after this server granted the
// lock. Otherwise the lease could lose its majority, and have one again, unnoticed:
//
//  1. A has the lock on 1 and 2; 3 is free
//  2. server 2 forgets; B is granted the lock on 2 and 3, and releases it
//  3. A joins on 3, and notices only then that it has lost 2
//
// Servers that still have the lease when 3 has granted the lock have granted it to nobody else.
func (l *Lease) joinNow(i int) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(l.ctx), l.quorum.timeout, errTooSlow)
	defer cancel()
	part, lost := l.part(i)
	if lost != nil {
		_ = lost.Unlock(ctx) // if the server still knows the lost lease, it would refuse us
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
		_ = part.Check(ctx) // ends part, so that the next attempt takes the lock again
	}
}

// confirmed reads from the servers whether a majority has the lease now.
func (l *Lease) confirmed(ctx context.Context) bool {
	l.mu.Lock()
	counting, _ := l.parts()
	l.mu.Unlock()
	return l.quorum.enough(l.quorum.each(ctx, counting, func(ctx context.Context, part *lock.Lease) error { return part.Check(ctx) }))
}

// part returns the lease on server i, if there is one. A lease that was lost is removed and
// returned as lost.
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
// the lease began; takeAgain fails if less than one Options.Lease is left of it.
func (l *Lease) takeAgain(ctx context.Context, i int) (*lock.Lease, error) {
	node, o := l.quorum.nodes[i], l.quorum.parts
	if o.MaxHold > 0 {
		o.MaxHold = max(o.MaxHold-time.Since(l.taken), 1)
		o.Logger = o.Logger.With("server", i)
		node = node.With(o)
	}
	return node.TryLock(ctx, l.name)
}
