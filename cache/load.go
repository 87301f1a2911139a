package cache

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/guard"
	"github.com/levee-go/levee/internal/rebuild"
)

const background = guard.Background // the class of loads that no caller waits for

// A load is a call of the source that has begun.
type load struct {
	began time.Time
	ctx   context.Context // that Hooks.Load has returned; nil without that hook
	done  func(Outcome)   // ends Hooks.Load
}

// loadContext returns the context of Hooks.Load, for the hooks of callers that wait for the load.
func (f *found[V]) loadContext() context.Context {
	if f == nil || f.load == nil {
		return nil
	}
	return f.load.ctx
}

// loadsOne reports whether the source has a loader of single keys.
func (c *Cache[K, V]) loadsOne() bool { return c.source.Load != nil || c.source.LoadEntry != nil }

// load calls the source in place for the keys of runs, and stores each result in its run.
func (c *Cache[K, V]) load(ctx context.Context, place *guard.Place, runs []*rebuild.Run) {
	for _, r := range runs {
		if r.Held() {
			c.counts.besideWriter.Add(1)
		}
	}
	if c.loadsOne() && len(runs) == 1 {
		c.loadOne(ctx, place, runs)
		return
	}
	c.loadMany(ctx, place, runs)
}

// loadOne loads the key of the only run.
func (c *Cache[K, V]) loadOne(ctx context.Context, place *guard.Place, runs []*rebuild.Run) {
	r, load := runs[0], c.plainly
	if c.source.LoadEntry != nil {
		load = c.withEntry(r)
	}
	key, id := subjectOf[K](r).key, r.ID
	var brought atomic.Pointer[entry[V]] // an abandoned loader may still write it
	r.Loaded = c.callSource(ctx, place, runs, func(ctx context.Context) error {
		began, epoch := time.Now(), c.fleet.LoadEpoch()
		value, say, err := load(ctx, key, epoch)
		var e *entry[V]
		switch {
		case c.isAbsent(&value, err): // a success of the source
			e = c.newNull(id, epoch, began)
		case err == nil:
			e = c.newEntry(key, value, epoch, time.Since(began))
			c.compareFilter(ctx, id)
		default:
			return err
		}
		e = c.applyEntry(id, e, say)
		if flight.Doubtful(ctx) {
			e.unstored(c.o.Rebuild.ErrorHold)
		}
		brought.Store(e)
		return nil
	})
	if r.Loaded.Err == nil {
		loadedBy[V](r).entry = brought.Load()
	}
}

// loadMany loads the keys of runs in one call.
func (c *Cache[K, V]) loadMany(ctx context.Context, place *guard.Place, runs []*rebuild.Run) {
	keys, ids := make([]K, 0, len(runs)), make([]string, 0, len(runs))
	at := make(map[string]int, len(runs)) // two flights may have the same id if no lease keeps them apart
	for _, r := range runs {
		if _, twice := at[r.ID]; !twice {
			at[r.ID] = len(keys)
			keys, ids = append(keys, subjectOf[K](r).key), append(ids, r.ID)
		}
	}
	var brought atomic.Pointer[[]*entry[V]] // an abandoned loader may still write it
	all := c.callSource(ctx, place, runs, func(ctx context.Context) error {
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
	answers := make([]found[V], len(runs))
	for i, r := range runs {
		answers[i], r.Loaded = *all.Answer.(*found[V]), all
		if r.Loaded.Answer = &answers[i]; all.Err == nil {
			answers[i].entry = (*brought.Load())[at[r.ID]]
		}
	}
}

// callSource runs fn in place, which loads the keys of runs. It returns a result without an
// entry. fn may still be running when callSource returns an error. The answer has no load if none
// has begun because the breaker has opened since it gave the place.
func (c *Cache[K, V]) callSource(ctx context.Context, place *guard.Place, runs []*rebuild.Run, fn func(context.Context) error) rebuild.Loaded {
	class, ids := runs[0].Class(), rebuild.IDs(runs)
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
		if class == guard.Degraded {
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
	err = c.engine.LoadError(ctx, err)
	by := began.Load()
	loaded := rebuild.Loaded{Answer: &found[V]{tier: TierSource, load: by}, Err: err}
	if by != nil {
		c.ended(by, err)
		loaded.Failed, loaded.Rest = err != nil, time.Duration(rest.Load())
	}
	return loaded
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
