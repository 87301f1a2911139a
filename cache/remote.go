package cache

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/wait"
)

// A remote reads the values that are stored in Redis. It calls Hooks.Read, and measures how long the
// reads take.
type remote struct {
	*telemetry
	fleet   *fleet.Group
	timeout time.Duration // Options.RedisTimeout
}

// readOne reads a key from Redis. Every hit in Redis takes this path. A read without an answer of
// Redis is counted elsewhere and is in no histogram, because most of these reads were never sent.
func (r *remote) readOne(ctx context.Context, id string) (value fleet.Value, now time.Time) {
	if r.fleet.Shared() {
		var stop func()
		ctx, stop = wait.Half(ctx, ctx, r.timeout) // half of the caller's time remains for the source
		defer stop()
	}
	return r.readFully(ctx, id)
}

// readFully is readOne for a caller all of whose time is for the read.
func (r *remote) readFully(ctx context.Context, id string) (value fleet.Value, now time.Time) {
	if !r.fleet.Shared() {
		return r.fleet.GetOne(ctx, id), time.Now()
	}
	ctx, done := r.begin(ctx, r.hooks.Read, Op{Key: id, Keys: 1})
	began := time.Now()
	value = r.fleet.GetOne(ctx, id)
	return value, r.ended(began, done, value)
}

// readMany reads several keys from Redis together.
func (r *remote) readMany(ctx context.Context, ids []string) (values []fleet.Value, now time.Time) {
	if len(ids) == 0 || !r.fleet.Shared() {
		return r.fleet.Get(ctx, ids...), time.Now()
	}
	ctx, done := r.begin(ctx, r.hooks.Read, Op{Key: ids[0], Keys: len(ids)})
	ctx, stop := wait.Half(ctx, ctx, r.timeout)
	defer stop()
	began := time.Now()
	values = r.fleet.Get(ctx, ids...)
	return values, r.ended(began, done, values...)
}

// ended measures a read that began at a time, has its hook end, and returns the present time.
func (r *remote) ended(began time.Time, done func(Outcome), values ...fleet.Value) (now time.Time) {
	now = time.Now()
	var outcome Outcome
	for _, value := range values {
		if outcome.Err == nil {
			outcome.Err = value.Err
		}
		if len(value.Data) > 0 {
			outcome.Hits++
		}
	}
	if outcome.Err == nil {
		r.times.read.add(&latencies, now.Sub(began))
	}
	done(outcome)
	return now
}
