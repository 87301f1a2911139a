package lock

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/internal/keys"
)

// errDone ends a wait of Once: another caller has done the work.
var errDone = errors.New("lock: done")

const maxKeep = 366 * 24 * time.Hour

// Once runs fn at most once within the time keep, over all processes; keep is from 1 ms to
// 366 days. One caller runs fn and returns true and fn's error; the others wait for it and
// return false and nil. If fn fails, panics or its process dies, the next caller runs it. If
// the lease is lost while fn runs, the error matches ErrLost and fn may have run elsewhere at
// the same time: across crashes fn runs at least once, so its effect should be fenced or
// idempotent.
//
// If ran is false, Once returns the error of Lock. If ran is true and the error matches
// ErrUnavailable, fn has succeeded, but Redis has not confirmed that the work is done: the next
// caller may run fn again. Once is independent of Lock(name).
func (l *Locker) Once(ctx context.Context, name string, keep time.Duration, fn func(ctx context.Context) error) (ran bool, err error) {
	if keep < time.Millisecond || keep > maxKeep {
		return false, badConfig("keep must be from 1ms to %v, got %v", maxKeep, keep)
	}
	lease, err := l.lock(ctx, keys.Once, name, once, true)
	switch {
	case errors.Is(err, errDone):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, lease.do(ctx, ceilMillis(keep), func(ctx context.Context, _ *Lease) error { return fn(ctx) })
}
