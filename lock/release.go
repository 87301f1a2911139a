package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// grace is how long releasing a lock may block after the end of the caller's context.
const grace = 100 * time.Millisecond

// release passes a grant on to a waiter of this process, or releases it in Redis; if that
// takes too long, it goes on in the background.
func (l *locker) release(ctx context.Context, g *grant, keep time.Duration) error {
	if g.o.Hooks.Released != nil && g.told.Load() {
		defer tell(l.log, g, func() { g.o.Hooks.Released(g.name, time.Since(g.taken)) })
	}
	if l.passOn(g) {
		return nil
	}
	l.watchdog.remove(g)
	patient, cancel := withGrace(ctx)
	defer cancel()
	what, err := l.store.release(patient, g, keep)
	switch {
	case errors.Is(err, ErrConflict):
		return fmt.Errorf("%w: %w", lossError(ErrStateLost), err)
	case err != nil:
		l.insist(g.o.Lease, func(ctx context.Context) error {
			_, err := l.store.release(ctx, g, keep)
			return err
		})
		if patient.Err() != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, wait.Ended(patient))
		}
		return err
	}
	switch what {
	case answerOK, answerAgain, answerPast: // the last two if the client has repeated the command
		return nil
	}
	return lossError(what.cause())
}

// releaseAll releases grants, all at the same time.
func (l *locker) releaseAll(ctx context.Context, grants []*grant, keep time.Duration) error {
	if len(grants) == 1 {
		return l.release(ctx, grants[0], keep)
	}
	return atOnce(grants, func(g *grant) error { return l.release(ctx, g, keep) })
}

// releaseLater releases, in the background, grants that their caller does not want any more.
func (l *locker) releaseLater(grants ...*grant) {
	for _, g := range grants {
		l.background(func(ctx context.Context) error { return l.release(ctx, g, 0) })
	}
}

// atOnce runs do for all of grants at the same time, and joins their errors.
func atOnce(grants []*grant, do func(*grant) error) error {
	errs := make([]error, len(grants))
	var all sync.WaitGroup
	for i, g := range grants {
		all.Go(func() { errs[i] = do(g) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// refuse releases, in the background, a lock that owners may have been granted, and makes
// Redis refuse it to them.
//
// A bid whose outcome is unknown may still be on its way to Redis, and arrive after the
// refusal:
//
//  1. bid for owner 7           ──▶ delayed on its connection
//  2. its caller leaves; refuse 7 ──▶ Redis notes: 7 was the last to release
//  3. the bid arrives: 7 has released, {"gone"}
//
// If another owner releases between 2 and 3, the note is overwritten and the bid is
// granted. Then lateReply gets the reply, and refuses the owner once more.
func (l *locker) refuse(t *target, lease time.Duration, owners []string) {
	for _, owner := range owners {
		l.insist(lease, func(ctx context.Context) error { return l.store.refuse(ctx, t, owner) })
	}
}

// insist runs op in the background, and repeats it until it succeeds, its error is final,
// or the time within is over.
func (l *locker) insist(within time.Duration, op func(context.Context) error) {
	l.background(insisting(within, op))
}

func insisting(within time.Duration, op func(context.Context) error) func(context.Context) error {
	until := time.Now().Add(within)
	return func(ctx context.Context) error {
		for retries := (wait.Backoff{First: 20 * time.Millisecond, Max: time.Second}); ; {
			err := op(ctx)
			if err == nil || final(err) || ctx.Err() != nil || time.Now().After(until) {
				return err
			}
			retries.Sleep(ctx)
		}
	}
}

// withGrace returns a context that ends when grace has passed after the end of ctx.
func withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(grace, func() { cancel(context.Cause(ctx)) })
	})
	return inner, func() { stop(); cancel(nil) }
}
