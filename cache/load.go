package cache

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/doorkeeper"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/guard"
	"github.com/levee-go/levee/internal/rebuild"
	"github.com/levee-go/levee/internal/wait"
)

const background = guard.Background // the class of loads that no caller waits for

// A load is a call of the source that has begun.
type load struct {
	began time.Time
	ctx   context.Context // that Hooks.Load has returned; nil without that hook
	done  func(Outcome)   // ends Hooks.Load
}

// A loader calls the functions of a Source, and makes entries of what they return.
type loader[K comparable, V any] struct {
	Source[K, V]
	*telemetry
	o          *Options
	values     *values[V]
	filter     *filter
	fleet      *fleet.Group
	flights    *flight.Group
	engine     *rebuild.Engine
	doorkeeper *doorkeeper.Doorkeeper
	running    wait.Tasks // running loads, abandoned ones too
}

// loadsOne reports whether the source has a loader of single keys.
func (l *loader[K, V]) loadsOne() bool { return l.Load != nil || l.LoadEntry != nil }

// load calls the source in place for the keys of runs, and stores each result in its run.
func (l *loader[K, V]) load(ctx context.Context, place *guard.Place, runs []*rebuild.Run) {
	for _, r := range runs {
		if r.Held() {
			l.counts.besideWriter.Add(1)
		}
	}
	if l.loadsOne() && len(runs) == 1 {
		l.loadOne(ctx, place, runs)
		return
	}
	l.loadMany(ctx, place, runs)
}

// loadOne loads the key of the only run.
func (l *loader[K, V]) loadOne(ctx context.Context, place *guard.Place, runs []*rebuild.Run) {
	r, load := runs[0], l.plainly
	if l.LoadEntry != nil {
		load = l.withEntry(r)
	}
	key, id := subjectOf[K](r).key, r.ID
	var brought atomic.Pointer[entry[V]] // an abandoned loader may still write it
	r.Loaded = l.callSource(ctx, place, runs, func(ctx context.Context) error {
		began, epoch := time.Now(), l.fleet.LoadEpoch()
		value, say, err := load(ctx, key, epoch)
		var e *entry[V]
		switch {
		case l.isAbsent(&value, err): // a success of the source
			e = l.newNull(id, epoch, began)
		case err == nil:
			e = l.newEntry(key, value, epoch, time.Since(began))
			l.filter.compare(ctx, id)
		default:
			return err
		}
		e = l.applyEntry(id, e, say)
		if flight.Doubtful(ctx) {
			e.unstored(l.o.Rebuild.ErrorHold)
		}
		brought.Store(e)
		return nil
	})
	if r.Loaded.Err == nil {
		loadedBy[V](r).entry = brought.Load()
	}
}

// loadMany loads the keys of runs in one call.
func (l *loader[K, V]) loadMany(ctx context.Context, place *guard.Place, runs []*rebuild.Run) {
	keys, ids := make([]K, 0, len(runs)), make([]string, 0, len(runs))
	at := make(map[string]int, len(runs)) // two flights may have the same id if no lease keeps them apart
	for _, r := range runs {
		if _, twice := at[r.ID]; !twice {
			at[r.ID] = len(keys)
			keys, ids = append(keys, subjectOf[K](r).key), append(ids, r.ID)
		}
	}
	var brought atomic.Pointer[[]*entry[V]] // an abandoned loader may still write it
	all := l.callSource(ctx, place, runs, func(ctx context.Context) error {
		began, epoch := time.Now(), l.fleet.LoadEpoch()
		values, err := l.LoadMany(ctx, keys)
		switch {
		case l.isNotFound(err):
			values = nil // a success of the source: it has none of the keys
		case err != nil:
			return err
		}
		entries := make([]*entry[V], len(keys))
		for i, key := range keys {
			if value, ok := values[key]; ok && !isNil(&value) {
				entries[i] = l.newEntry(key, value, epoch, time.Since(began))
				l.filter.compare(ctx, ids[i])
			} else {
				entries[i] = l.newNull(ids[i], epoch, began)
			}
			if flight.Doubtful(ctx) {
				entries[i].unstored(l.o.Rebuild.ErrorHold)
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
func (l *loader[K, V]) callSource(ctx context.Context, place *guard.Place, runs []*rebuild.Run, fn func(context.Context) error) rebuild.Loaded {
	class, ids := runs[0].Class(), rebuild.IDs(runs)
	var began atomic.Pointer[load]
	var rest atomic.Int64 // RetryAfter of the error
	err := place.Run(l.flights.Loading(ctx, ids...), func(ctx context.Context) error {
		if !l.running.Begin() {
			return ErrClosed
		}
		defer l.running.End()
		flight.Begin()
		defer flight.End()
		ctx, done := l.begin(ctx, l.hooks.Load, Op{Key: ids[0], Keys: len(ids), Background: class == background})
		running := &load{began: time.Now(), done: done}
		if l.hooks.Load != nil {
			running.ctx = ctx
		}
		began.Store(running)
		l.counts.loads.Add(1)
		if class == guard.Degraded {
			l.counts.degraded.Add(uint64(len(ids)))
		}
		err := fn(ctx)
		if err != nil {
			_ = err.Error() // if Error panics, it does so here, where it counts as the loader's panic
			rest.Store(int64(retryAfter(err)))
			err = ofLoader(err) // isNotFound has ruled out that an ErrNotFound in it means absence
		}
		return err
	})
	err = l.engine.LoadError(ctx, err)
	by := began.Load()
	loaded := rebuild.Loaded{Answer: &found[V]{tier: TierSource, load: by}, Err: err}
	if by != nil {
		l.ended(by, err)
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
func (l *loader[K, V]) ended(load *load, err error) {
	if err != nil {
		l.counts.loadErrors.Add(1)
	}
	l.times.load.add(&latencies, time.Since(load.began))
	load.done(Outcome{Err: err})
}

// newEntry makes an entry of a value that was just loaded. epoch is the epoch when the load
// began.
func (l *loader[K, V]) newEntry(key K, value V, epoch uint64, cost time.Duration) *entry[V] {
	ttl := l.o.TTL
	if l.TTL != nil {
		if own := l.TTL(key, value); own > 0 {
			ttl = own
		}
	}
	e := &entry[V]{value: value, life: life{epoch: epoch}}
	if l.Tags != nil {
		e.tag(l.Tags(key, value))
	}
	e.stamp(time.Now(), jittered(ttl, l.o.Jitter), cost)
	return e
}

// newNull makes an entry of a key that the source did not have in a load that began at began.
func (l *loader[K, V]) newNull(id string, epoch uint64, began time.Time) *entry[V] {
	if l.filter.Filter != nil {
		l.counts.filterFalse.Add(1)
	}
	e := &entry[V]{life: life{null: true, epoch: epoch, private: !l.doorkeeper.Admits(id, began)}}
	e.stamp(time.Now(), jittered(l.o.NullTTL, l.o.Jitter), time.Since(began))
	return e
}
