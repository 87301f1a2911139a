package lock

import (
	"context"
	"errors"
	"slices"
	"time"
)

// lock takes a lock for one caller, in the mode of t, and returns its lease.
func (l *locker) lock(ctx context.Context, t *target, o *Options, wait bool) (*Lease, error) {
	if wait && t.mode != permit && heldBy(ctx, t.record()) {
		return nil, ErrDeadlock
	}
	grants, err := l.take(ctx, t, o, wait)
	if err != nil {
		return nil, err
	}
	return l.lease(ctx, grants), nil
}

// take takes a lock and has the watchdog renew it.
func (l *locker) take(ctx context.Context, t *target, o *Options, wait bool) ([]*grant, error) {
	return l.count(ctx, o, wait, func() ([]*grant, bool, error) {
		if wait {
			g, contended, err := l.takeInTurn(ctx, t, o)
			return []*grant{g}, contended, err
		}
		g, err := l.takeNow(ctx, t, o)
		return []*grant{g}, false, err
	})
}

// count runs take as one call: it updates Stats, calls the hooks, and releases the grants if the
// Locker was closed or ctx ended meanwhile. wait tells whether take may wait. A take that returns
// neither grants nor an error does not count.
func (l *locker) count(ctx context.Context, o *Options, wait bool, take func() (grants []*grant, contended bool, err error)) (grants []*grant, err error) {
	begin, contended := time.Now(), false
	l.calls.Add(1) // before isClosed: either Close sees the call, or the call sees Close
	defer l.calls.Add(-1)
	if wait {
		l.counts.waiting.Add(1)
		defer l.counts.waiting.Add(-1)
	}
	switch {
	case l.isClosed():
		err = ErrClosed
	case ctx.Err() != nil:
		err = notAcquired(ctx)
	default:
		grants, contended, err = take()
	}
	if err != nil {
		grants = nil
	}
	if grants != nil || errors.Is(err, ErrNotReplicated) {
		l.adviseOnce(o)
	}
	switch {
	case grants == nil:
	case l.isClosed(): // they came too late for Close to find them
		_ = l.releaseAll(ctx, grants, 0)
		err = ErrClosed
	case ctx.Err() != nil: // while they were granted: the caller has given up
		l.releaseLater(grants...)
		err = notAcquired(ctx)
	}
	took := time.Since(begin)
	if err != nil {
		l.counts.ended(ctx, contended, took, err)
		return nil, err
	}
	for _, g := range grants {
		l.counts.ended(ctx, contended, took, nil)
		g.told.Store(true)
		l.tellAcquired(g, took, contended)
	}
	return grants, nil
}

// takeNow takes a lock if it is free and nobody waits for it.
func (l *locker) takeNow(ctx context.Context, t *target, o *Options) (*grant, error) {
	b := o.bid()
	b.owners = []string{l.newOwner()}
	r, err := l.ask(ctx, t, o, b)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, notAcquired(ctx)
	case err != nil:
		return nil, err
	case r.answer == answerGranted:
		return l.accept(ctx, t, o, b.owners[0], r.granted)
	case r.answer == answerDone:
		return nil, errDone
	}
	return nil, &HeldError{Name: t.name, Remaining: r.busy.remaining, Waiting: r.busy.waiting}
}

// bid returns a bid with the fields that the options determine.
func (o *Options) bid() bid {
	return bid{lease: o.Lease, label: o.Label, confirm: o.confirm()}
}

// ask sends a bid to Redis. If its outcome is unknown, ask makes sure that the owners do
// not keep the lock.
func (l *locker) ask(ctx context.Context, t *target, o *Options, b bid) (bidReply, error) {
	r, err := l.store.acquire(ctx, t, b)
	if err != nil && !errors.Is(err, ErrConflict) {
		l.refuse(t, o.Lease, b.owners)
	}
	return r, err
}

// lateReply handles the reply, or the error, of a copy of a bid that its caller did not wait
// for. It releases the lock for owners without a grant in this process, and removes an entry
// for which nobody waits from the queue. See refuse for how a bid can be granted after
// its refusal, and lateCopies for how after its release.
func (l *locker) lateReply(t *target, b bid, r bidReply, err error) {
	switch {
	case err != nil || r.answer == answerGranted:
		l.refuse(t, b.lease, slices.DeleteFunc(slices.Clone(b.owners), l.watchdog.has))
	case r.answer == answerBusy && b.entry != "":
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.entries[b.entry] == nil {
			l.leaveQueue(t, b.entry)
		}
	}
}

// accept makes a grant of the lock that an owner got. If the reply came too late, or too
// few replicas have confirmed the lock, accept releases it and returns an error.
func (l *locker) accept(ctx context.Context, t *target, o *Options, owner string, got granted) (*grant, error) {
	g, err := l.admit(t, o, owner, got)
	switch {
	case errors.Is(err, ErrNotReplicated):
		return nil, errors.Join(err, l.release(ctx, g, 0))
	case err != nil:
		_ = l.release(ctx, g, 0)
		return nil, err
	}
	return g, nil
}

// admit is accept without the release, so it does not wait for Redis. After an error its caller
// has to release the grant.
func (l *locker) admit(t *target, o *Options, owner string, got granted) (*grant, error) {
	g := newGrant(t, o, owner, got)
	if got.confirmed < o.Replicas {
		return g, ErrNotReplicated
	}
	if g.expired(time.Now()) {
		return g, unavailable(errors.New("its answer took longer than the lease"))
	}
	if t.mode == exclusive && o.mayPassOn() {
		g.spare = maxPassed
	}
	l.watchdog.add(g)
	return g, nil
}
