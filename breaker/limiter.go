package breaker

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// A limiter has places, and a queue of bounded length for calls that find none.
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

// A wait says how long one call may wait for its places, at all limiters together.
type wait struct {
	ctx      context.Context // the caller's
	closed   context.Context // ends when the breaker opens; has ended unless it is closed
	timeout  time.Duration   // negative: the call does not wait
	deadline time.Time       // of the timeout; set when the call first has to wait
}

// acquire takes a place. It returns ErrOpen or ErrLimited, the latter joined with
// the error of the caller's context if that has ended.
func (l *limiter) acquire(w *wait) error {
	// TryAcquire takes no place that somebody is waiting for.
	if l == nil || l.places.TryAcquire(1) {
		return nil
	}
	if w.timeout < 0 {
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

// begin returns the context of waiting at one limiter. Its cause is ErrLimited
// after the timeout and ErrOpen when the breaker opens. stop frees what it holds:
// without it, closed would refer to every call that ever waited.
func (w *wait) begin() (ctx context.Context, stop func()) {
	if w.deadline.IsZero() {
		w.deadline = time.Now().Add(w.timeout)
	}
	ctx, cancel := context.WithDeadlineCause(w.ctx, w.deadline, ErrLimited)
	ctx, end := context.WithCancelCause(ctx)
	forget := context.AfterFunc(w.closed, func() { end(ErrOpen) })
	return ctx, func() { forget(); cancel() }
}

func (l *limiter) release() {
	if l != nil {
		l.places.Release(1)
	}
}

// waiting is the length of the queue.
func (l *limiter) waiting() int {
	if l == nil {
		return 0
	}
	return int(l.queue.Load())
}
