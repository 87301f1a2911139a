package cache

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// duringOutage continues a lookup while Redis cannot be read. It serves a value that this process
// has kept and that is less than a second old. An older one is loaded if a place among the
// degraded loads is free at once: as far as anybody knows, the database is healthy. If none is
// free, or the load fails, the kept value is served.
//
// In a cache without Redis no other process changes the value. It is served until
// StaleWhileRevalidate ends, and refreshed in the background past its TTL.
func (c *Cache[K, V]) duringOutage(l *lookup[K, V]) {
	e := c.local.keptEntry(l.key)
	now := time.Now()
	if e == nil {
		return
	}
	state := c.values.stateOf(e, now)
	soon := state <= stale && (c.values.stale > 0 || !c.values.countsAsStale(e))
	old := found[V]{entry: e, tier: TierLocal, stale: c.values.countsAsStale(e)}
	serves := soon && old.suits(l.want)
	switch {
	case serves && !c.fleet.Shared():
		l.renews = e.past(now) && !l.want.noLoad()
		l.answered(old)
	case serves && !e.past(now) && e.age(now) < maxStaleLife:
		l.answered(old)
	case soon, c.fleet.Shared() && c.values.mayReplaceAnError(e, now):
		l.fallBackTo(old)
	}
}

// staleOnError returns an old value for a caller whose read ended in err: its load failed or was
// refused, or its context ended. The value is the one that the caller has read in Redis, or one
// that this process has kept. Other processes may have invalidated a kept value without our
// knowledge, so it is marked. A closed cache and a load that reads its own key get no old value.
func (c *Cache[K, V]) staleOnError(ctx context.Context, l *lookup[K, V], batch []*lookup[K, V], err error) (old found[V], ok bool) {
	if errors.Is(err, ErrClosed) || errors.Is(err, flight.ErrClosed) || errors.Is(err, flight.ErrReentrant) {
		return old, false
	}
	if l.hasToRead() {
		c.readFallbacks(ctx, l, batch)
	}
	if old, ok = c.fallbackOf(l); ok {
		c.log.Warn("a load failed and an old value is served", logonce.Name("key", l.id), "error", err)
		return old, true
	}
	if old, ok = c.kept(l); ok {
		c.log.Warn("a read failed and a value kept in this process is served", logonce.Name("key", l.id), "error", err)
	}
	return old, ok
}

// staleWhileSlow returns an old value for a caller whose load has not ended, at SoftTimeout or at
// the end of its context. As nothing has failed, it returns a kept value only while messages
// arrive, so that this process would have heard of its invalidation. It also reads Redis for the
// rest of the batch, which waits for the same time and would be too late to read when its turn
// comes.
func (c *Cache[K, V]) staleWhileSlow(ctx context.Context, l *lookup[K, V], batch []*lookup[K, V]) (old found[V], ok bool) {
	c.readFallbacks(ctx, l, batch)
	if old, ok = c.fallbackOf(l); ok || !c.fleet.Live() {
		return old, ok
	}
	return c.kept(l)
}

// fallbackOf returns the fallback that the caller has read, unless it is dead by now.
func (c *Cache[K, V]) fallbackOf(l *lookup[K, V]) (old found[V], ok bool) {
	if l.fallback.entry == nil || c.values.stateOf(l.fallback.entry, time.Now()) == dead {
		return old, false
	}
	return l.fallback, true
}

// readFallbacks reads Redis, in one pipeline, for a caller and for the rest of its batch, as far
// as they have joined a running flight and read nothing yet.
func (c *Cache[K, V]) readFallbacks(ctx context.Context, l *lookup[K, V], batch []*lookup[K, V]) {
	if ctx.Err() != nil {
		return
	}
	var ids []string
	var reading []*lookup[K, V]
	for _, l := range append([]*lookup[K, V]{l}, batch...) {
		if l.hasToRead() {
			l.own = tried
			ids, reading = append(ids, l.id), append(reading, l)
		}
	}
	if len(reading) == 0 {
		return
	}
	contain.Call(func() error { // a hook of the user's client may panic; the callers then wait for the load
		values, now := c.remote.readMany(ctx, ids)
		for i, value := range values {
			if value.Err != nil || len(value.Data) == 0 {
				continue
			}
			if answer, state := c.values.judge(ids[i], value, now); state != dead {
				reading[i].fallBackTo(answer)
			}
		}
		return nil
	}, func(error) {})
}

// kept returns the value that this process has kept of a key, if it may be served although nobody
// knows whether it is still right.
func (c *Cache[K, V]) kept(l *lookup[K, V]) (old found[V], ok bool) {
	e := c.local.keptEntry(l.key)
	now := time.Now()
	if e == nil || !c.values.mayReplaceAnError(e, now) {
		return old, false
	}
	return found[V]{entry: e, tier: TierLocal, stale: c.values.countsAsStale(e)}.asFallback(l.want)
}

// notCached ends a lookup that must not load, after Redis had no value for it.
func (c *Cache[K, V]) notCached(ctx context.Context, l *lookup[K, V]) {
	if ctx.Err() != nil {
		l.failed(wait.Ended(ctx))
		return
	}
	if l.own == unanswered {
		if old, ok := c.fallbackOf(l); ok {
			l.answered(old)
			return
		}
		if old, ok := c.kept(l); ok {
			l.answered(old)
			return
		}
	}
	l.failed(ErrNotCached)
}
