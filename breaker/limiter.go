package breaker

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// A limiter has places, and a queue of bounded length for those who find none.
// A nil limiter has no limit.
type limiter struct {
	places   *semaphore.Weighted
	maxQueue int64 // negative: no bound
	queue    atomic.Int64
}

func newLimiter(limit, maxQueue int) *limiter {
	if limit < 0 {
		return nil
	}
	return &limiter{places: semaphore.NewWeighted(int64(limit)), maxQueue: int64(maxQueue)}
}

// waiting is what one call is willing to bear, over all the limiters it passes.
type waiting struct {
	ctx    context.Context
	era    *era          // gives up when this ends; may be nil
	budget time.Duration // negative: does not wait
	until  time.Time     // when the budget is spent, since it first had to wait
}

// acquire takes a place. It returns ErrLimited, joined with the error of the
// caller's context if that ended, or ErrOpen.
func (l *limiter) acquire(w *waiting) error {
	// TryAcquire takes no place that somebody is waiting for.
	if l == nil || l.places.TryAcquire(1) {
		return nil
	}
	if w.budget < 0 {
		return ErrLimited
	}
	defer l.queue.Add(-1)
	if length := l.queue.Add(1); l.maxQueue >= 0 && length > l.maxQueue {
		return ErrLimited
	}
	ctx, stop := w.begin()
	defer stop()
	if l.places.Acquire(ctx, 1) == nil {
		return nil
	}
	if w.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrLimited, ended(w.ctx))
	}
	return context.Cause(ctx)
}

// begin gives the context of a wait. Its cause is ErrLimited when the budget is
// spent and ErrOpen when the breaker opens.
func (w *waiting) begin() (context.Context, func()) {
	if w.until.IsZero() {
		w.until = time.Now().Add(w.budget)
	}
	ctx, cancel := context.WithDeadlineCause(w.ctx, w.until, ErrLimited)
	if w.era == nil {
		return ctx, cancel
	}
	ctx, give := context.WithCancelCause(ctx)
	stop := context.AfterFunc(w.era.ctx, func() { give(ErrOpen) })
	return ctx, func() { stop(); cancel() }
}

func (l *limiter) release() {
	if l != nil {
		l.places.Release(1)
	}
}

// waitingNow is the length of the queue.
func (l *limiter) waitingNow() int {
	if l == nil {
		return 0
	}
	return int(l.queue.Load())
}
