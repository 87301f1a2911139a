package cache

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
)

// A writer ends what Redis and this process have of keys that have changed in the source. It knows keys by
// their ids alone, so that a [Write] of caches of several types has one kind of writer.
//
// It always changes Redis before this process: the other way round, a reader in between could fill the
// local tier from Redis again.
type writer struct {
	*telemetry
	fleet     *fleet.Group
	flights   *flight.Group
	local     localEntries
	filter    *filter
	fallback  time.Duration   // windows.fallback: how long past its TTL an expired value may be served
	closing   context.Context // ends with the cache
	gone      atomic.Bool     // the cache has closed, and has tried its last invalidations
	reopening reopening       // repeats the drops of Writes of several caches

	hears atomic.Pointer[func([]string)] // of an audit.Ledger: is told of the ids that a call has changed
}

// localEntries is the local tier as a writer knows it.
type localEntries interface {
	Delete(id string)
	Flush()
}

func (w *writer) closed() bool { return w.closing.Err() != nil }

// change runs do, which changes Redis, and counts and times it. It returns an error of this package.
func (w *writer) change(ctx context.Context, call string, ids []string, do func(context.Context) error) error {
	ctx, done := w.beginWrite(ctx, call, ids)
	began := time.Now()
	err := do(ctx)
	w.times.write.add(&latencies, time.Since(began))
	switch {
	case call == "hold": // the end of the Write reports what is not confirmed
		err = named(err)
	case err != nil:
		w.counts.notInvalidated.Add(1)
		err = notInvalidated(err)
	}
	w.tellLedger(call, ids)
	done(Outcome{Err: err})
	return err
}

// forget runs do, which invalidates ids in Redis, and then drops what this process has of them.
func (w *writer) forget(ctx context.Context, ids []string, do func(context.Context) error) error {
	err := w.change(ctx, "invalidate", ids, do)
	w.forgetHere(ids)
	return err
}

// forgetHere drops the entries and held errors of ids in this process.
func (w *writer) forgetHere(ids []string) {
	for _, id := range ids {
		w.local.Delete(id)
		w.flights.Forget(id)
	}
}

func (w *writer) invalidate(ctx context.Context, ids []string) error {
	return w.forget(ctx, ids, func(ctx context.Context) error { return w.fleet.Invalidate(ctx, ids...) })
}

func (w *writer) expire(ctx context.Context, ids []string) error {
	return w.forget(ctx, ids, func(ctx context.Context) error { return w.fleet.Expire(ctx, w.fallback, ids...) })
}

// announce makes ids of new keys known to the filter, and then drops their nulls.
func (w *writer) announce(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	ctx, done := w.beginWrite(ctx, "announce", ids)
	err := w.filter.add(ctx, ids)
	if err == nil {
		err = w.invalidate(ctx, ids)
	}
	done(Outcome{Err: err})
	return err
}

// hold expires ids and closes them to publication until end is called. After a transaction that
// succeeded, end invalidates them. After one that failed they stay expired: the old value is a
// fallback.
func (w *writer) hold(ctx context.Context, ids []string) (end func(ctx context.Context, succeeded bool) error) {
	var lift func(context.Context, bool) error
	err := w.change(ctx, "hold", ids, func(ctx context.Context) (err error) {
		lift, err = w.fleet.Hold(ctx, w.fallback, ids...)
		return err
	})
	if err != nil {
		w.log.Warn("a write goes on without a hold on its keys", "error", err)
	}
	w.forgetHere(ids)
	return func(ctx context.Context, succeeded bool) error {
		return w.forget(ctx, ids, func(ctx context.Context) error { return lift(ctx, succeeded) })
	}
}

// drop invalidates what is held after a transaction, or expires it if that failed, and opens nothing. Its
// error matches ErrNotInvalidated. If the cache is gone, drop tries and returns nil: nobody repeats it.
func (w *writer) drop(ctx context.Context, h *held) (err error) {
	if h.everything {
		err = w.endAll(context.WithoutCancel(ctx))
	}
	if len(h.ids) > 0 {
		var failed error
		if h.succeeded {
			failed = w.fleet.Invalidate(ctx, h.ids...)
		} else {
			failed = w.fleet.Expire(ctx, w.fallback, h.ids...)
		}
		if failed != nil {
			w.counts.notInvalidated.Add(1)
			err = joined(err, notInvalidated(failed))
		}
		w.forgetHere(h.ids)
	}
	if len(h.tags) > 0 {
		err = joined(err, w.endTags(ctx, h.tags, h.succeeded))
	}
	if w.gone.Load() {
		return nil
	}
	return err
}

// tryReplicas returns an error if Redis does not reply, or fewer replicas than Rebuild.WaitReplicas do.
func (w *writer) tryReplicas(ctx context.Context) error {
	if w.gone.Load() { // as drop, of which nobody repeats an error
		return nil
	}
	return w.fleet.TryReplicas(ctx)
}

// clear ends all values of the cache.
func (w *writer) clear(ctx context.Context) error {
	if w.closed() {
		return ErrClosed
	}
	return w.endAll(ctx)
}

// endAll is clear for a cache that may be closing.
func (w *writer) endAll(ctx context.Context) error {
	err := w.change(ctx, "clear", nil, w.fleet.Clear)
	w.local.Flush() // also what is not confirmed
	w.flights.ForgetAll()
	return err
}

// endTags clears tags after a transaction that succeeded, and expires them after one that failed.
func (w *writer) endTags(ctx context.Context, tags []uint32, succeeded bool) error {
	end := w.fleet.ExpireTags
	if succeeded || w.fallback == 0 {
		end = w.fleet.ClearTags
	}
	err := w.change(ctx, "clear", nil, func(ctx context.Context) error { return end(ctx, tags...) })
	if err != nil { // it is not known when Redis did it, if it did
		w.local.Flush()
	}
	return err
}

// onMaster returns nil if the master of Redis has made the change and only replicas are missing:
// waiting for them would make the database keep its log for as long.
func (w *writer) onMaster(err error) error {
	if onlyReplicas(err) {
		w.log.Warn("changes are confirmed to the feed that too few replicas of redis know of", "error", err)
		return nil
	}
	return err
}
