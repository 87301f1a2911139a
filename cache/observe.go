package cache

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/internal/fleet"
)

// readOne reads a key from Redis. It is the path of every hit. What Redis did not answer
// is counted elsewhere and is in no histogram: most of it was never sent.
func (c *Cache[K, V]) readOne(ctx context.Context, id string) (value fleet.Value, now time.Time) {
	if !c.fleet.Shared() {
		return c.fleet.GetOne(ctx, id), time.Now()
	}
	ctx, done := c.begin(ctx, c.o.Hooks.Read, Op{Key: id, Keys: 1})
	began := time.Now()
	value = c.fleet.GetOne(ctx, id)
	if now = time.Now(); value.Err == nil {
		c.times.read.add(&latencies, now.Sub(began))
	}
	outcome := Outcome{Err: value.Err}
	if len(value.Data) > 0 {
		outcome.Hits = 1
	}
	done(outcome)
	return value, now
}

// readMany is readOne for keys that are read together.
func (c *Cache[K, V]) readMany(ctx context.Context, ids []string) (values []fleet.Value, now time.Time) {
	if len(ids) == 0 || !c.fleet.Shared() {
		return c.fleet.Get(ctx, ids...), time.Now()
	}
	ctx, done := c.begin(ctx, c.o.Hooks.Read, Op{Key: ids[0], Keys: len(ids)})
	began := time.Now()
	values = c.fleet.Get(ctx, ids...)
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
		c.times.read.add(&latencies, now.Sub(began))
	}
	done(outcome)
	return values, now
}

// An observed is what hooks and histograms have to know of a job.
type observed struct {
	outer     context.Context // that of the job before its rebuild
	rebuilt   func(Outcome)   // ends Hooks.Rebuild; nil: it has not begun
	waitsFrom time.Time       // for the lease that another process has; zero: it does not
	waited    func(Outcome)   // ends Hooks.LeaseWait
}

// beginRebuild tells of a job that goes on from Redis. It may be called again.
func (c *Cache[K, V]) beginRebuild(j *job[K, V]) {
	if c.o.Hooks.Rebuild == nil || j.warms || j.observed.rebuilt != nil {
		return
	}
	j.observed.outer = j.ctx
	j.ctx, j.observed.rebuilt = c.begin(j.ctx, c.o.Hooks.Rebuild, Op{Key: j.id, Keys: 1, Background: j.class == background})
}

// endRebuild tells of the end of a job. The next flight of its callers starts from the
// context from before: a chain of flights must not make a chain of contexts.
func (c *Cache[K, V]) endRebuild(j *job[K, V], answer found[V], err error) {
	if j.observed.rebuilt == nil {
		return
	}
	if errors.Is(err, errElsewhere) {
		err = nil
	}
	j.ctx = j.observed.outer
	j.observed.rebuilt(Outcome{Err: err, Load: answer.load})
}

// beginLeaseWait tells of a job that waits for another process. It may be called again.
func (c *Cache[K, V]) beginLeaseWait(j *job[K, V]) {
	if !j.observed.waitsFrom.IsZero() {
		return
	}
	j.observed.waitsFrom = time.Now()
	_, j.observed.waited = c.begin(j.ctx, c.o.Hooks.LeaseWait, Op{Key: j.id, Keys: 1, Background: j.class == background})
}

func (c *Cache[K, V]) endLeaseWait(j *job[K, V]) {
	if j.observed.waitsFrom.IsZero() {
		return
	}
	c.times.leaseWait.add(&latencies, time.Since(j.observed.waitsFrom))
	j.observed.waitsFrom = time.Time{}
	j.observed.waited(Outcome{})
}
