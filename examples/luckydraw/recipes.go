package main

import (
	"context"
	"errors"
	"strconv"

	"github.com/levee-go/levee/examples/internal/stage"
	"github.com/levee-go/levee/lock"
)

var recipes = []stage.Recipe[scale]{
	{Name: "no lock", Naive: true, Reset: fresh, Serve: noLock},
	{Name: "a lock around the check alone", Naive: true, Reset: fresh, Serve: checkAlone},
	{Name: "a lock given back before the commit", Naive: true, Reset: fresh, Serve: beforeCommit},
	{Name: "lock.TryLock, one lock for all users", Reset: fresh, Serve: oneForAll},
	{Name: "lock.TryLock, one for each user", Reset: fresh, Serve: oneForEach},
}

func noLock(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	w := &wheel{p.DB, s}
	return clicks(ctx, s, w.draw), nil
}

// What was true under the lock need not be when it has been given back.
func checkAlone(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	w := &wheel{p.DB, s}
	return withLocker(p, func(locker *lock.Locker) stage.Tally {
		return clicks(ctx, s, func(ctx context.Context, user int) error {
			if err := try(ctx, locker, key(user), func(ctx context.Context) error { return w.check(ctx, user) }); err != nil {
				return err
			}
			if err := w.turn(ctx); err != nil {
				return err
			}
			return w.commit(ctx, user)
		})
	})
}

// This is what becomes of a lock inside of a function that is wrapped into a transaction: the next one reads what is not committed yet.
func beforeCommit(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	w := &wheel{p.DB, s}
	return withLocker(p, func(locker *lock.Locker) stage.Tally {
		return clicks(ctx, s, func(ctx context.Context, user int) error {
			err := try(ctx, locker, key(user), func(ctx context.Context) error {
				if err := w.check(ctx, user); err != nil {
					return err
				}
				return w.turn(ctx)
			})
			if err != nil {
				return err
			}
			return w.commit(ctx, user)
		})
	})
}

// With one lock for everybody nothing goes wrong, and hardly anybody gets a turn.
func oneForAll(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	w := &wheel{p.DB, s}
	return withLocker(p, func(locker *lock.Locker) stage.Tally {
		return clicks(ctx, s, func(ctx context.Context, user int) error {
			return try(ctx, locker, "draw", func(ctx context.Context) error { return w.draw(ctx, user) })
		})
	})
}

// Users do not get in the way of one another, and from the check to the commit none gets in his own.
func oneForEach(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	w := &wheel{p.DB, s}
	return withLocker(p, func(locker *lock.Locker) stage.Tally {
		return clicks(ctx, s, func(ctx context.Context, user int) error {
			return try(ctx, locker, key(user), func(ctx context.Context) error { return w.draw(ctx, user) })
		})
	})
}

func key(user int) string { return "draw:" + strconv.Itoa(user) }

// try runs do under a lock, or refuses at once if somebody has it.
func try(ctx context.Context, locker *lock.Locker, name string, do func(ctx context.Context) error) (err error) {
	lease, err := locker.TryLock(ctx, name)
	if errors.Is(err, lock.ErrNotAcquired) {
		return errTooFrequent
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	return do(lease.Context())
}

func withLocker(p *stage.Process, do func(*lock.Locker) stage.Tally) (stage.Tally, error) {
	locker, err := lock.New(p.Redis, lock.Options{Prefix: p.Prefix})
	if err != nil {
		return stage.Tally{}, err
	}
	defer locker.Close()
	return do(locker), nil
}

// clicks has every user click so often, one click right after the other.
func clicks(ctx context.Context, s scale, draw func(ctx context.Context, user int) error) stage.Tally {
	return stage.Crowd(ctx, s.Customers, s.Users*s.Clicks, func(ctx context.Context, i int) error { return draw(ctx, i/s.Clicks) })
}
