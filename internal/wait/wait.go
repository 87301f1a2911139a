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

// Jitter returns d give or take up to part of it, at random, so that what happened
// together is not repeated together.
func Jitter(d time.Duration, part float64) time.Duration {
	return time.Duration(float64(d) * (1 - part + 2*part*rand.Float64()))
}

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
