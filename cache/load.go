package cache

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/internal/flight"
)

// The classes of loads, which say within which limits of the breaker they run.
const (
	normal     = breaker.Normal     // somebody waits for it, under a lease
	degraded   = breaker.Degraded   // somebody waits for it, and without a lease every process may be loading the same
	background = breaker.Background // a refresh: nobody waits for it
	classes    = 3
)

// A loaded is what a load brought: an entry or an error.
type loaded[V any] struct {
	entry   *entry[V]
	err     error
	refused bool            // err is the breaker's, which did not let the load begin
	by      context.Context // of the load, for Hooks
}

// load asks the source for the keys of jobs, which are of one class, and notes what it
// brought in each job.
func (c *Cache[K, V]) load(jobs []*job[K, V]) {
	switch {
	case c.source.Load != nil && len(jobs) == 1:
		c.loadOne(jobs[0], breaker.Call{})
		return
	case c.flights.IsLoading(jobs[0].ctx), jobs[0].warms: // a part of Warm is a call by itself, and counts as one
		// A load asks for other keys of its own cache: it must not wait for calls of
		// LoadMany that may wait for it.
		c.loadMany(jobs)
		return
	}
	if !c.inner(jobs) && c.gather[jobs[0].class].load(jobs, c.crowd(jobs).Inner(), c.loadMany) {
		return
	}
	c.gatherInner[jobs[0].class].load(jobs, nil, c.loadMany)
}

// inner reports whether a load waits for one of jobs, or asks for them. Its place is of
// no use until they are loaded, so they must not wait for jobs that may wait for a
// place.
func (c *Cache[K, V]) inner(jobs []*job[K, V]) bool {
	return c.o.Breaker.Inside(jobs[0].ctx) || slices.ContainsFunc(jobs, func(j *job[K, V]) bool { return j.flight.Inner() })
}

// crowd returns those who wait for jobs.
func (c *Cache[K, V]) crowd(jobs []*job[K, V]) *flight.Crowd[found[V]] {
	flights := make([]*flight.Flight[found[V]], len(jobs))
	for i, j := range jobs {
		flights[i] = j.flight
	}
	return c.flights.Crowd(flights...)
}

// loadOne loads one key, as call says.
func (c *Cache[K, V]) loadOne(j *job[K, V], call breaker.Call) {
	var brought atomic.Pointer[entry[V]] // a loader that was left behind may still write it
	by, refused, err := c.ask([]*job[K, V]{j}, call, func(ctx context.Context) error {
		began, epoch := time.Now(), c.fleet.LoadEpoch()
		value, err := c.source.Load(ctx, j.key)
		switch {
		case err == nil && isNil(&value), c.isNotFound(err): // a success of the source
			brought.Store(c.newNull(j.id, epoch, began))
		case err == nil:
			brought.Store(c.newEntry(j.key, value, epoch, time.Since(began)))
			c.compareFilter(ctx, j.id)
		default:
			return err
		}
		return nil
	})
	j.loaded = loaded[V]{err: err, refused: refused, by: by}
	if err == nil {
		j.loaded.entry = brought.Load()
	}
}

// loadMany loads the keys of jobs in one call.
func (c *Cache[K, V]) loadMany(jobs []*job[K, V]) {
	keys, ids := make([]K, len(jobs)), make([]string, len(jobs))
	for i, j := range jobs {
		keys[i], ids[i] = j.key, j.id
	}
	var brought atomic.Pointer[[]*entry[V]] // a loader that was left behind may still write it
	by, refused, err := c.ask(jobs, breaker.Call{}, func(ctx context.Context) error {
		began, epoch := time.Now(), c.fleet.LoadEpoch()
		values, err := c.source.LoadMany(ctx, keys)
		switch {
		case c.isNotFound(err):
			values = nil // a success of the source: it has none of the keys
		case err != nil:
			return err
		}
		entries := make([]*entry[V], len(keys))
		for i, key := range keys {
			if value, ok := values[key]; ok && !isNil(&value) {
				entries[i] = c.newEntry(key, value, epoch, time.Since(began))
				c.compareFilter(ctx, ids[i])
			} else {
				entries[i] = c.newNull(ids[i], epoch, began)
			}
		}
		brought.Store(&entries)
		return nil
	})
	for i, j := range jobs {
		j.loaded = loaded[V]{err: err, refused: refused, by: by}
		if err == nil {
			j.loaded.entry = (*brought.Load())[i]
		}
	}
}

// atOnce withdraws a call that does not find a place at once.
var atOnce = make(chan struct{})

func init() { close(atOnce) }

// ask has fn load the keys of jobs for those who wait for them. It completes call.
func (c *Cache[K, V]) ask(jobs []*job[K, V], call breaker.Call, fn func(context.Context) error) (by context.Context, refused bool, err error) {
	ids := make([]string, len(jobs))
	for i, j := range jobs {
		ids[i] = j.id
	}
	crowd := c.crowd(jobs)
	call.Class, call.For, call.Inner = jobs[0].class, crowd, crowd.Inner()
	if call.Class == degraded && !slices.ContainsFunc(jobs, func(j *job[K, V]) bool { return !j.impatient }) {
		call.Withdraw = atOnce
	}
	return c.askSource(jobs[0].ctx, ids, call, fn)
}

// askSource has fn load what ids name, by way of the breaker. fn may still be running when
// askSource returns an error. by is the context that Hooks.Load has given the load. refused
// says that the load did not begin because the breaker lets no more of them run: an
// ErrLimited that the loader returns is an error like any other.
func (c *Cache[K, V]) askSource(ctx context.Context, ids []string, call breaker.Call, fn func(context.Context) error) (by context.Context, refused bool, err error) {
	ctx, cancel := context.WithCancelCause(c.flights.Loading(ctx, ids...))
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	if limit := c.o.Rebuild.LoadTimeout; limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, limit, ErrLoadTimeout)
		defer stop()
	}
	var began atomic.Pointer[begun]
	err = c.breaker.Run(ctx, call, func(ctx context.Context) error {
		if !c.loading.begin() {
			return ErrClosed
		}
		defer c.loading.end()
		ctx, done := c.begin(ctx, c.o.Hooks.Load, Op{Key: ids[0], Keys: len(ids), Background: call.Class == background})
		began.Store(&begun{time.Now(), ctx, done})
		c.counts.loads.Add(1)
		if call.Class == degraded {
			c.counts.degraded.Add(uint64(len(ids)))
		}
		err := fn(ctx)
		if err != nil {
			_ = err.Error() // one that panics does so here, where it counts as the loader's panic
		}
		return err
	})
	if cause := context.Cause(ctx); err != nil && cause != nil && (errors.Is(cause, ErrClosed) || errors.Is(cause, ErrLoadTimeout)) {
		err = cause
	}
	load := began.Load()
	if load == nil {
		return nil, errors.Is(err, breaker.ErrLimited) || errors.Is(err, breaker.ErrWithdrawn), err
	}
	return c.ended(load, err), false, err
}

// A begun is a load that has begun.
type begun struct {
	at   time.Time
	by   context.Context // that of the load
	done func(Outcome)
}

// ended notes the end of a load, which may still be running.
func (c *Cache[K, V]) ended(load *begun, err error) (by context.Context) {
	if err != nil {
		c.counts.loadErrors.Add(1)
	}
	c.times.load.add(&latencies, time.Since(load.at))
	load.done(Outcome{Err: err})
	if c.o.Hooks.Load == nil {
		return nil
	}
	return load.by
}

// newEntry makes an entry of a value that the source holds now. The load began in epoch.
func (c *Cache[K, V]) newEntry(key K, value V, epoch uint64, cost time.Duration) *entry[V] {
	ttl := c.o.TTL
	if c.source.TTL != nil {
		if own := c.source.TTL(key, value); own > 0 {
			ttl = own
		}
	}
	e := &entry[V]{value: value, life: life{epoch: epoch}}
	e.stamp(time.Now(), jittered(ttl, c.o.Jitter), cost)
	return e
}

// newNull makes an entry of a key that the source did not have when it was asked at
// began.
func (c *Cache[K, V]) newNull(id string, epoch uint64, began time.Time) *entry[V] {
	if c.o.Filter != nil {
		c.counts.filterFalse.Add(1)
	}
	e := &entry[V]{life: life{null: true, epoch: epoch, private: !c.doorkeeper.admits(id, began)}}
	e.stamp(time.Now(), jittered(c.o.NullTTL, c.o.Jitter), time.Since(began))
	return e
}
