package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Transfer
//
// A lock is transferred by a change of its owner's name in Redis:
//
//	Detach   owner a ──▶ b, a new name, which the token contains
//	Attach   owner b ──▶ c, a new name
//	Release  owner b ──▶ none
//
// A command for an earlier name, such as a delayed renewal, finds that owner gone and does
// nothing. A Locker that does not know whether its Attach has succeeded remembers c, so that
// it can repeat the Attach. No other Locker can, nor can this one after a success: the first
// lease may be lost here while Redis still has its owner c, and its Unlock is still to come.

// Detach ends this lease and returns a token for its locks. The locks stay taken for the
// time ttl from now, without renewal, unless the token is attached or released before.
// Detach takes one round trip for each lock. A lock may be detached and attached any number
// of times; its fence stays the same.
//
// If ttl is not from 100 ms to 24 h, or the lease has other handles (Reenter), the error
// matches ErrConfig. If the lease was lost, it matches ErrLost. If Redis does not reply, it
// matches ErrUnavailable; the lease has ended then too, and its locks are released. If Redis
// stays away for longer than Options.Lease, they may stay taken for the time ttl.
func (s *Lease) Detach(ctx context.Context, ttl time.Duration) (Token, error) {
	if ttl < minLease || ttl > maxLease {
		return "", badConfig("ttl must be from %v to %v, got %v", minLease, maxLease, ttl)
	}
	if err := s.endOnlyHandle(); err != nil {
		return "", err
	}
	s.acq.cancel(nil)
	var parts []part
	grants := slices.Clone(s.acq.grants)
	for i, g := range s.acq.grants {
		detached, err := s.locker.detach(ctx, g, ceilMillis(ttl))
		if err != nil {
			_ = atOnce(grants, func(other *grant) error {
				if other == g {
					return s.locker.undetach(ctx, g, detached)
				}
				return s.locker.release(ctx, other, 0)
			})
			return "", err
		}
		detached.told.Store(true)
		grants[i] = detached
		parts = append(parts, detached.part())
	}
	return makeToken(parts), nil
}

// detach gives the lock of a grant to a new owner, which nobody renews, and returns the new
// owner's grant. After an error the new owner may or may not have the lock.
func (l *locker) detach(ctx context.Context, g *grant, ttl time.Duration) (*grant, error) {
	l.watchdog.remove(g)
	detached := &grant{target: g.target, owner: l.newOwner(), fence: g.fence, o: g.o, taken: g.taken}
	r, err := l.store.change(ctx, renewal{grant: g, lease: ttl, heir: detached.owner})
	switch {
	case err != nil:
		return detached, err
	case r.answer != answerOK:
		return detached, lossError(r.answer.cause())
	case r.confirmed < g.o.Replicas:
		return detached, ErrNotReplicated
	}
	return detached, nil
}

// undetach releases the lock of a grant after detach has failed: in Redis it has one owner or the
// other, and detach's command may still be on its way. The first owner's lock is released first.
// In the other order the command may come in between, and the second owner keeps the lock.
func (l *locker) undetach(ctx context.Context, g, detached *grant) error {
	if g.o.Hooks.Released != nil {
		defer tell(l.log, g, func() { g.o.Hooks.Released(g.name, time.Since(g.taken)) })
	}
	release := func(ctx context.Context) error {
		if _, err := l.store.release(ctx, g, 0); err != nil {
			return err
		}
		_, err := l.store.release(ctx, detached, 0)
		return err
	}
	patient, cancel := withGrace(ctx)
	defer cancel()
	err := release(patient)
	if err != nil {
		l.insist(g.o.Lease, release)
	}
	return err
}

// Attach takes over the locks of a token, and renews them from now on with the Options.Lease
// of the Locker. A token can be attached once: afterwards, and after its ttl has passed or its
// locks were released, the error matches ErrNotHeld. The same Locker may repeat a call that
// failed with ErrUnavailable.
func (l *Locker) Attach(ctx context.Context, t Token) (lease *Lease, err error) {
	parts, err := t.parts()
	if err != nil {
		return nil, err
	}
	if l.err != nil {
		return nil, l.err
	}
	if l.shared.isClosed() {
		return nil, ErrClosed
	}
	heirs := l.shared.beginAttach(t, len(parts))
	if heirs == nil {
		return nil, ErrNotHeld
	}
	defer func() { l.shared.endAttach(t, l.o.Lease, err) }()
	var grants []*grant
	for i := range parts {
		g, err := l.shared.attach(ctx, parts[i].grant(l.o), heirs[i])
		if err != nil {
			if errors.Is(err, ErrNotHeld) { // then the token is of no more use
				_ = l.shared.releaseAll(ctx, grants, 0)
			}
			return nil, err
		}
		grants = append(grants, g)
	}
	for _, g := range grants {
		g.told.Store(true)
		l.shared.watchdog.add(g)
	}
	if l.shared.isClosed() { // they came too late for Close to find them
		_ = l.shared.releaseAll(ctx, grants, 0)
		return nil, ErrClosed
	}
	return l.shared.lease(ctx, grants), nil
}

// attach takes over the lock of a detached grant, for the new owner heir.
func (l *locker) attach(ctx context.Context, detached *grant, heir string) (*grant, error) {
	o := detached.o
	r, err := l.store.change(ctx, renewal{grant: detached, lease: o.Lease, heir: heir})
	switch {
	case err != nil:
		return nil, err
	case r.answer != answerOK:
		return nil, fmt.Errorf("%w: %w", ErrNotHeld, r.answer.cause())
	case r.confirmed < o.Replicas:
		return nil, ErrNotReplicated
	}
	return newGrant(&detached.target, o, heir, granted{fence: detached.fence, ends: r.ends, sent: r.sent}), nil
}

// An attaching is an Attach that runs, or has ended without its outcome being known.
type attaching struct {
	heirs []string  // the new owners of the token's locks
	until time.Time // when they are forgotten; zero: it runs
}

// beginAttach notes that an Attach of this token runs, and returns names for the new owners of
// its n locks: those of an Attach before whose outcome is unknown, or new ones. It returns nil
// if another Attach of the token runs.
func (l *locker) beginAttach(t Token, n int) (heirs []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.attaching, func(_ Token, a attaching) bool { return !a.until.IsZero() && time.Now().After(a.until) })
	a, known := l.attaching[t]
	switch {
	case known && a.until.IsZero():
		return nil
	case !known:
		for range n {
			a.heirs = append(a.heirs, l.newOwner())
		}
	}
	l.attaching[t] = attaching{heirs: a.heirs}
	return a.heirs
}

// endAttach notes how the Attach of this token has ended. If that is unknown, the new owners are
// remembered for as long as they may have the locks: for a lease after the command arrives.
func (l *locker) endAttach(t Token, lease time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNotReplicated) {
		l.attaching[t] = attaching{l.attaching[t].heirs, time.Now().Add(patientTime + lease)}
		return
	}
	delete(l.attaching, t)
}

// Release releases the locks of a token without attaching it. A second Release returns nil
// as long as nobody else has taken the locks. If the token was attached or its ttl has
// passed, the error matches ErrNotHeld.
func (l *Locker) Release(ctx context.Context, t Token) error {
	parts, err := t.parts()
	if err != nil {
		return err
	}
	var errs []error
	for i := range parts {
		what, err := l.shared.store.release(ctx, parts[i].grant(l.o), 0)
		switch {
		case err != nil:
			errs = append(errs, err)
		case what != answerOK && what != answerAgain:
			errs = append(errs, fmt.Errorf("%w: %w", ErrNotHeld, what.cause()))
		}
	}
	return errors.Join(errs...)
}
