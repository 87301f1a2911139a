package lock

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/internal/keys"
)

// errDone ends the wait for work that another has done.
var errDone = errors.New("lock: done")

const maxKeep = 366 * 24 * time.Hour

// Once runs fn if nobody has within the time keep, over all processes: one caller
// runs it and gets ran = true and fn's error, while the others wait and then return
// false and nil. If fn fails, panics or its process dies, the next one that waits
// or comes runs it. If the lease is lost while fn runs, the error matches ErrLost
// and fn may have run elsewhere at the same time: Once is at least once across
// crashes, unless fn's effect is fenced or idempotent.
//
// Errors without ran are those of Lock. The names of Once are its own: Lock(name)
// does not keep it out.
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
