package cache

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/guard"
)

// The classes of loads. Each class has its own limits in the breaker.
const (
	normal     = guard.Normal     // a caller waits for the load, which has a lease
	degraded   = guard.Degraded   // a caller waits for the load; without a lease every process may be loading the key
	background = guard.Background // a refresh: no caller waits for it
)

// A loaded is the result of a load: an entry or an error.
type loaded[V any] struct {
	entry   *entry[V]
	err     error
	refused bool          // err is breaker.ErrLimited: no place was free
	by      *load         // the load that ran; nil: none has begun
	failed  bool          // the load ran and returned err
	rest    time.Duration // RetryAfter of err, 0 if it has none
}

// A load is a call of the source that has begun.
type load struct {
	began time.Time
	ctx   context.Context // that Hooks.Load has returned; nil without that hook
	done  func(Outcome)   // ends Hooks.Load
}

// context returns the context of Hooks.Load, for the hooks of callers that wait for the load.
func (l *load) context() context.Context {
	if l == nil {
		return nil
	}
	return l.ctx
}

// loadContext returns the context for a load and for its wait in the queue. It ends on Close, and
// after LoadTimeout if that is set.
func (c *Cache[K, V]) loadContext(ctx context.Context) (load context.Context, stop func()) {
	load, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(c.closing, func() { cancel(ErrClosed) })
	end := func() {}
	if limit := c.o.Rebuild.LoadTimeout; limit > 0 {
		load, end = context.WithTimeoutCause(load, limit, ErrLoadTimeout)
	}
	return load, func() { end(); unhook(); cancel(nil) }
}

// loadError replaces err by ErrClosed or ErrLoadTimeout if that is what ended ctx, the context of
// a load.
func (c *Cache[K, V]) loadError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && (errors.Is(cause, ErrClosed) || errors.Is(cause, ErrLoadTimeout)) {
		return cause
	}
	return err
}

// acquire takes a place at the breaker for jobs, which are of one class. It waits as long as any
// caller waits for the jobs.
func (c *Cache[K, V]) acquire(ctx context.Context, jobs []*job[K, V]) (*guard.Place, error) {
	flights, try := make([]*flight.Flight[found[V]], len(jobs)), true
	for i, j := range jobs {
		flights[i], try = j.flight, try && j.impatient
	}
	waiting, stop := c.flights.Waiting(ctx, flights...)
	defer stop()
	acquire := c.breaker.Acquire
	if jobs[0].class == degraded && try {
		acquire = c.breaker.TryAcquire
	}
	place, err := acquire(waiting, jobs[0].class)
	return place, c.loadError(ctx, err)
}

// loadsOne reports whether the source has a loader of single keys.
func (c *Cache[K, V]) loadsOne() bool { return c.source.Load != nil || c.source.LoadEntry != nil }

// load calls the source in place for the keys of jobs, and stores each result in its job.
func (c *Cache[K, V]) load(ctx context.Context, place *guard.Place, jobs []*job[K, V]) {
	if c.loadsOne() && len(jobs) == 1 {
		c.loadOne(ctx, place, jobs)
		return
	}
	c.loadMany(ctx, place, jobs)
}

// loadOne loads the key of the only job.
func (c *Cache[K, V]) loadOne(ctx context.Context, place *guard.Place, jobs []*job[K, V]) {
	j, load := jobs[0], c.plainly
	if c.source.LoadEntry != nil {
		load = c.withEntry(j)
	}
	var brought atomic.Pointer[entry[V]] // an abandoned loader may still write it
	j.loaded = c.callSource(ctx, place, jobs, func(ctx context.Context) error {
		began, epoch := time.Now(), c.fleet.LoadEpoch()
		value, say, err := load(ctx, j.key, epoch)
		var e *entry[V]
		switch {
		case c.isAbsent(&value, err): // a success of the source
			e = c.newNull(j.id, epoch, began)
		case err == nil:
			e = c.newEntry(j.key, value, epoch, time.Since(began))
			c.compareFilter(ctx, j.id)
		default:
			return err
		}
		e = c.applyEntry(j.id, e, say)
		if flight.Doubtful(ctx) {
			e.unstored(c.o.Rebuild.ErrorHold)
		}
		brought.Store(e)
		return nil
	})
	if j.loaded.err == nil {
		j.loaded.entry = brought.Load()
	}
}

// loadMany loads the keys of jobs in one call.
func (c *Cache[K, V]) loadMany(ctx context.Context, place *guard.Place, jobs []*job[K, V]) {
	keys, ids := make([]K, 0, len(jobs)), make([]string, 0, len(jobs))
	at := make(map[string]int, len(jobs)) // two flights may have the same id if no lease keeps them apart
	for _, j := range jobs {
		if _, twice := at[j.id]; !twice {
			at[j.id] = len(keys)
			keys, ids = append(keys, j.key), append(ids, j.id)
		}
	}
	var brought atomic.Pointer[[]*entry[V]] // an abandoned loader may still write it
	all := c.callSource(ctx, place, jobs, func(ctx context.Context) error {
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
			if flight.Doubtful(ctx) {
				entries[i].unstored(c.o.Rebuild.ErrorHold)
			}
		}
		brought.Store(&entries)
		return nil
	})
	for _, j := range jobs {
		if j.loaded = all; all.err == nil {
			j.loaded.entry = (*brought.Load())[at[j.id]]
		}
	}
}

// callSource runs fn in place, which loads the keys of jobs. It returns a loaded without an
// entry. fn may still be running when callSource returns an error. by is nil if the load has not
// begun because the breaker has opened since it gave the place.
func (c *Cache[K, V]) callSource(ctx context.Context, place *guard.Place, jobs []*job[K, V], fn func(context.Context) error) loaded[V] {
	class, ids := jobs[0].class, idsOf(jobs)
	var began atomic.Pointer[load]
	var rest atomic.Int64 // RetryAfter of the error
	err := place.Run(c.flights.Loading(ctx, ids...), func(ctx context.Context) error {
		if !c.loading.Begin() {
			return ErrClosed
		}
		defer c.loading.End()
		flight.Begin()
		defer flight.End()
		ctx, done := c.begin(ctx, c.o.Hooks.Load, Op{Key: ids[0], Keys: len(ids), Background: class == background})
		l := &load{began: time.Now(), done: done}
		if c.o.Hooks.Load != nil {
			l.ctx = ctx
		}
		began.Store(l)
		c.counts.loads.Add(1)
		if class == degraded {
			c.counts.degraded.Add(uint64(len(ids)))
		}
		err := fn(ctx)
		if err != nil {
			_ = err.Error() // if Error panics, it does so here, where it counts as the loader's panic
			rest.Store(int64(retryAfter(err)))
			err = ofLoader(err) // isNotFound has ruled out that an ErrNotFound in it means absence
		}
		return err
	})
	err = c.loadError(ctx, err)
	by := began.Load()
	if by == nil {
		return loaded[V]{err: err}
	}
	c.ended(by, err)
	return loaded[V]{err: err, by: by, failed: err != nil, rest: time.Duration(rest.Load())}
}

// retryAfter returns the RetryAfter of a source's error, 0 if it has none.
func retryAfter(err error) time.Duration {
	var says interface{ RetryAfter() time.Duration }
	if !errors.As(err, &says) {
		return 0
	}
	return says.RetryAfter()
}

// ended counts and times a load and ends its hook. The loader may still be running.
func (c *Cache[K, V]) ended(l *load, err error) {
	if err != nil {
		c.counts.loadErrors.Add(1)
	}
	c.times.load.add(&latencies, time.Since(l.began))
	l.done(Outcome{Err: err})
}

// newEntry makes an entry of a value that was just loaded. epoch is the epoch when the load
// began.
func (c *Cache[K, V]) newEntry(key K, value V, epoch uint64, cost time.Duration) *entry[V] {
	ttl := c.o.TTL
	if c.source.TTL != nil {
		if own := c.source.TTL(key, value); own > 0 {
			ttl = own
		}
	}
	e := &entry[V]{value: value, life: life{epoch: epoch}}
	if c.source.Tags != nil {
		e.tag(c.source.Tags(key, value))
	}
	e.stamp(time.Now(), jittered(ttl, c.o.Jitter), cost)
	return e
}

// newNull makes an entry of a key that the source did not have in a load that began at began.
func (c *Cache[K, V]) newNull(id string, epoch uint64, began time.Time) *entry[V] {
	if c.o.Filter != nil {
		c.counts.filterFalse.Add(1)
	}
	e := &entry[V]{life: life{null: true, epoch: epoch, private: !c.doorkeeper.Admits(id, began)}}
	e.stamp(time.Now(), jittered(c.o.NullTTL, c.o.Jitter), time.Since(began))
	return e
}
