package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/levee-go/levee/lock"
)

// The context of a function under a lock ends with the caller's, and says the same of it each time.
// Defect: at a deadline two timers race, and it says "canceled" or "deadline exceeded".
func TestTheContextOfDoEndsAsItsCallers(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		l := s.open(t, lock.Options{})
		why := errors.New("why")
		for name, test := range map[string]struct {
			begin func(context.Context) (context.Context, context.CancelFunc)
			end   error
			cause error
		}{
			"deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeoutCause(ctx, 5*time.Millisecond, why)
			}, context.DeadlineExceeded, context.DeadlineExceeded},
			"cancel": {func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancelCause(ctx)
				time.AfterFunc(time.Millisecond, func() { cancel(why) })
				return ctx, func() { cancel(nil) }
			}, context.Canceled, why},
		} {
			for range 200 {
				ctx, cancel := test.begin(t.Context())
				_ = l.Do(ctx, "a", func(inner context.Context, _ *lock.Lease) error {
					within, stop := context.WithCancel(inner) // as a client makes one of it
					defer stop()
					<-within.Done()
					if inner.Err() != test.end || within.Err() != test.end || context.Cause(inner) != test.cause {
						t.Errorf("%s: %v, within it %v, cause %v", name, inner.Err(), within.Err(), context.Cause(inner))
					}
					return nil
				})
				cancel()
			}
		}
	})
}
