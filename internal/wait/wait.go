// Package wait has the pauses, backoffs and task counts that the other packages share.
package wait

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Sleep returns after d, or when ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Half returns a context made from work, which may be ctx, for a step that takes at most most. If ctx has less
// than twice most left, the context ends after half of that time, so that the other half remains for the case
// that the step fails. The caller must call stop after the step.
func Half(ctx, work context.Context, most time.Duration) (half context.Context, stop func()) {
	if until, ok := Halfway(ctx, most); ok {
		return context.WithDeadline(work, until)
	}
	return work, func() {}
}

// Halfway returns the time when half of what ctx has left is over. ok reports whether a step that takes at
// most most could last longer than that.
func Halfway(ctx context.Context, most time.Duration) (until time.Time, ok bool) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return time.Time{}, false
	}
	now := time.Now()
	left := deadline.Sub(now)
	return now.Add(left / 2), left < 2*most
}

// Jitter returns d plus or minus a random share of it, at most part, so that
// processes that started together spread out.
func Jitter(d time.Duration, part float64) time.Duration {
	return time.Duration(float64(d) * (1 - part + 2*part*rand.Float64()))
}

// A Backoff computes the pauses between attempts: First, then twice as long each time up to Max,
// each plus or minus a quarter, so that callers who failed together do not retry together.
type Backoff struct {
	First, Max time.Duration
	next       time.Duration // 0: First
}

// Next returns the pause before the next attempt.
func (b *Backoff) Next() time.Duration {
	pause := max(b.next, b.First)
	b.next = min(2*pause, b.Max)
	return Jitter(pause, 0.25)
}

// Sleep returns after the pause before the next attempt, or when ctx ends.
func (b *Backoff) Sleep(ctx context.Context) { Sleep(ctx, b.Next()) }

// Reset makes First the next pause. Callers use it when an attempt has succeeded.
func (b *Backoff) Reset() { b.next = 0 }

// Wake sends a signal on ch, a channel with room for one, and does not block: if a
// signal is still unread, it adds none.
func Wake(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Ended returns the error of ctx, which has ended, joined with its cause if that is
// another error.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
