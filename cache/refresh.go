package cache

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/rebuild"
	"github.com/levee-go/levee/internal/wait"
)

// Refresh loads keys anew from the source, for all processes, while their old values are still
// served. When it returns nil, no Get that starts afterwards, in any process, gets an older value
// from Redis or from a running rebuild; local tiers of other processes follow as soon as the
// message arrives. Use it for a change that was made elsewhere, of a key that is read too often
// to be dropped: [Cache.Invalidate] makes the next reader wait for the load. If a key no longer
// exists, Refresh stores that.
//
// It takes the keys' leases from whoever loads them, since such a load may have begun before the
// change. A key that a writer holds is invalidated instead: its value is dropped at the end of
// the write anyway.
//
// Refresh returns when ctx ends; the loads that it has begun go on. For keys whose load failed,
// whose old values are still served, or that Redis did not confirm (ErrUnavailable), the error is
// a [*BatchError]. It may also return ErrInvalidKey, ErrClosed, or the error of a ctx that has
// ended.
func (c *Cache[K, V]) Refresh(ctx context.Context, keys ...K) error {
	keys = unique(keys)
	ids, err := c.check(keys...)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var failed BatchError[K]
	runs := make([]*rebuild.Run, 0, len(keys))
	for i, key := range keys {
		f, err := c.flights.Apart(ctx, ids[i])
		if err != nil {
			failed.add(key, named(err))
			continue
		}
		runs = append(runs, c.engine.NewRun(ctx, f, &subject[K]{key: key}, rebuild.Replace))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.engine.Do(runs)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return wait.Ended(ctx)
	}
	for _, r := range runs {
		if err := r.Loaded.Err; err != nil {
			failed.add(subjectOf[K](r).key, named(err))
		}
	}
	if len(failed.Causes) > 0 {
		return &failed
	}
	return nil
}

// refresh loads values in the background while the values that were read are still served. It
// loads under their leases, so at most once in all processes, and values of one GetMany by one
// LoadMany. It leaves out a key that this process is refreshing or has just failed to refresh,
// and keys for which Options.Refreshes leaves no place.
func (c *Cache[K, V]) refresh(ctx context.Context, lookups ...*lookup[K, V]) {
	for part := range slices.Chunk(lookups, c.engine.Batch) {
		if !c.refreshPart(ctx, part) {
			return
		}
	}
}

// refreshPart starts a refresh of keys that one call of the source loads. It returns false if too
// many refreshes run.
func (c *Cache[K, V]) refreshPart(ctx context.Context, lookups []*lookup[K, V]) bool {
	if c.refreshing.Add(1) > int64(c.o.Refreshes) {
		c.refreshing.Add(-1)
		return false
	}
	var runs []*rebuild.Run
	running := &atomic.Int64{}
	for _, l := range lookups {
		if f := c.flights.Alone(l.id); f != nil {
			r := c.engine.NewRun(flight.Detached(ctx), f, &subject[K]{key: l.key}, rebuild.Refresh)
			r.Seen, r.Ended = l.seen, func(err error) {
				if running.Add(-1) == 0 {
					c.refreshing.Add(-1)
				}
				c.refreshEnded(f.ID, err)
			}
			runs = append(runs, r)
		}
	}
	if len(runs) == 0 {
		c.refreshing.Add(-1)
		return true
	}
	running.Store(int64(len(runs)))
	c.counts.refreshes.Add(uint64(len(runs)))
	c.engine.Go(runs)
	return true
}

func (c *Cache[K, V]) refreshEnded(id string, err error) {
	switch {
	case err == nil:
		c.counts.refreshed.Add(1)
	case !errors.Is(err, rebuild.ErrElsewhere) && !errors.Is(err, rebuild.ErrNoRedis) && !c.closed():
		c.log.Warn("a refresh failed", logonce.Name("key", id), "error", err)
	}
}
