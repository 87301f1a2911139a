// Package wait holds the small ways of waiting that the other packages share.
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

// Half returns work, which may be ctx, for a step that takes at most most by itself: it ends after half of
// the time that ctx has left, if that is less. What is done when the step has failed has the other half. Stop
// must be called after the step.
func Half(ctx, work context.Context, most time.Duration) (half context.Context, stop func()) {
	if until, ok := Halfway(ctx, most); ok {
		return context.WithDeadline(work, until)
	}
	return work, func() {}
}

// Halfway returns when half of the time that ctx has left is over, and whether that is before a step
// ends that takes at most most.
func Halfway(ctx context.Context, most time.Duration) (until time.Time, ok bool) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return time.Time{}, false
	}
	now := time.Now()
	left := deadline.Sub(now)
	return now.Add(left / 2), left < 2*most
}

// Jitter returns d give or take up to part of it, at random, so that what happened
// together is not repeated together.
func Jitter(d time.Duration, part float64) time.Duration {
	return time.Duration(float64(d) * (1 - part + 2*part*rand.Float64()))
}

// A Backoff tells how long to wait before the next attempt: First, then twice as long each time and
// Max at most, each give or take a quarter, so that those who failed together do not come back together.
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

// Reset begins with First again: an attempt has succeeded.
func (b *Backoff) Reset() { b.next = 0 }

// Wake signals ch, a channel with room for one signal, and does not block: one
// signal that nobody has seen yet is enough.
func Wake(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Ended returns the error of a context that has ended, and its cause if it has one
// of its own.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
