package cache

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// A class says within which limits of the breaker a load runs.
type class uint8

const (
	normal     class = iota // somebody waits for it, under a lease
	degraded                // somebody waits for it, and without a lease every process may be loading the same
	background              // a refresh: nobody waits for it
	classes
)

// A loaded is what a load brought: an entry or an error.
type loaded[V any] struct {
	entry *entry[V]
	err   error
}

// load asks the source for the keys of jobs, which are of one class, and notes what it
// brought in each job.
func (c *Cache[K, V]) load(jobs []*job[K, V]) {
	switch {
	case c.source.Load != nil && len(jobs) == 1:
		c.loadOne(jobs[0])
	case c.flights.IsLoading(jobs[0].ctx):
		// A load asks for other keys of its own cache: it must not wait for calls of
		// LoadMany that may wait for it.
		c.loadMany(jobs)
	default:
		c.gather[jobs[0].class].load(jobs, c.loadMany)
	}
}

func (c *Cache[K, V]) loadOne(j *job[K, V]) {
	var brought atomic.Pointer[entry[V]] // a loader that was left behind may still write it
	err := c.ask(j.ctx, j.class, []string{j.id}, func(ctx context.Context) error {
		began := time.Now()
		value, err := c.source.Load(ctx, j.key)
		switch {
		case err == nil:
			brought.Store(c.newEntry(j.key, value, time.Since(began)))
		case c.isNotFound(err): // a success of the source
			brought.Store(c.newNull(j.id, began))
		default:
			return err
		}
		return nil
	})
	j.loaded = loaded[V]{err: err}
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
	err := c.ask(jobs[0].ctx, jobs[0].class, ids, func(ctx context.Context) error {
		began := time.Now()
		values, err := c.source.LoadMany(ctx, keys)
		switch {
		case c.isNotFound(err):
			values = nil // a success of the source: it has none of the keys
		case err != nil:
			return err
		}
		entries := make([]*entry[V], len(keys))
		for i, key := range keys {
			if value, ok := values[key]; ok {
				entries[i] = c.newEntry(key, value, time.Since(began))
			} else {
				entries[i] = c.newNull(ids[i], began)
			}
		}
		brought.Store(&entries)
		return nil
	})
	for i, j := range jobs {
		j.loaded = loaded[V]{err: err}
		if err == nil {
			j.loaded.entry = (*brought.Load())[i]
		}
	}
}

// ask calls the source by way of the breaker, within the limits of class. ids are those
// that fn loads. fn may still be running when ask returns an error.
func (c *Cache[K, V]) ask(ctx context.Context, class class, ids []string, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(c.flights.Loading(ctx, ids...))
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	if limit := c.o.Rebuild.LoadTimeout; limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, limit, ErrLoadTimeout)
		defer stop()
	}
	do := c.breaker.Do
	switch class {
	case degraded:
		do = c.breaker.DoDegraded
	case background:
		do = c.breaker.DoBackground
	}
	var began atomic.Bool
	err := do(ctx, func(ctx context.Context) error {
		if !c.loading.begin() {
			return ErrClosed
		}
		defer c.loading.end()
		began.Store(true)
		c.counts.loads.Add(1)
		return fn(ctx)
	})
	if err != nil && began.Load() {
		c.counts.loadErrors.Add(1)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && (errors.Is(cause, ErrClosed) || errors.Is(cause, ErrLoadTimeout)) {
		return cause
	}
	return err
}

func (c *Cache[K, V]) isNotFound(err error) bool {
	return err != nil && (errors.Is(err, ErrNotFound) || c.o.IsNotFound != nil && c.o.IsNotFound(err))
}

// newEntry makes an entry of a value that the source holds now.
func (c *Cache[K, V]) newEntry(key K, value V, cost time.Duration) *entry[V] {
	ttl := c.o.TTL
	if c.source.TTL != nil {
		if own := c.source.TTL(key, value); own > 0 {
			ttl = own
		}
	}
	e := &entry[V]{value: value}
	e.stamp(time.Now(), jittered(ttl, c.o.Jitter), cost)
	return e
}

// newNull makes an entry of a key that the source did not have when it was asked at
// began.
func (c *Cache[K, V]) newNull(id string, began time.Time) *entry[V] {
	if c.o.Filter != nil {
		c.counts.filterFalse.Add(1)
	}
	e := &entry[V]{life: life{null: true}, private: !c.doorkeeper.admits(id, began)}
	e.stamp(time.Now(), jittered(c.o.NullTTL, c.o.Jitter), time.Since(began))
	return e
}
