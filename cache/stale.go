package cache

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/logonce"
)

// A state is how far the life of a value has gone. It only ever moves on:
//
//	         TTL ends          StaleWhileRevalidate ends     StaleIfError ends
//	load        │                        │                           │
//	 ├── fresh ─┼──────── stale ─────────┼──────── fallback ─────────┼── dead
//	 └─── early ┘
//
// A read does with it:
//
//	fresh     serve it
//	early     serve it, and this reader refreshes it in the background
//	stale     serve it, marked, and refresh it in the background
//	fallback  load; serve it, marked, only if the load fails or is refused, at SoftTimeout
//	          if that is set, or at the caller's own deadline
//	dead      load
//
// An invalidation ends a value in any state. Nulls go from fresh to dead: a key that has come to
// exist must not be hidden for longer than NullTTL.
type state uint8

const (
	fresh state = iota
	early
	stale
	fallback
	dead
)

// windows says when a value goes from one state to the next.
type windows struct {
	stale, fallback time.Duration // how long after the TTL; 0: never in that state
	early           float64       // Options.EarlyRefresh; 0: never
}

// of returns the state of e at now. chance must be drawn from (0, 1] for each call.
func (w windows) of(e life, now time.Time, chance float64) state {
	switch over := now.Sub(time.UnixMilli(e.expires)); {
	case e.expired && (e.null || e.hard || over >= w.fallback || w.fallback == 0):
		return dead
	case e.expired:
		return fallback
	case over < 0 && !e.null && w.isEarly(e.ttl(), -over, time.Duration(e.cost)*time.Millisecond, chance):
		return early
	case over < 0:
		return fresh
	case e.null || e.hard:
		return dead
	case over < w.stale:
		return stale
	case over < w.fallback:
		return fallback
	}
	return dead
}

// isEarly picks the reader that refreshes a value which many read, before it ends. It is the more
// likely, the nearer the end is and the longer a load takes. With the exponential draw the
// expected number of refreshes does not depend on the number of readers (Vattani, Chierichetti
// and Lowenstein, "Optimal Probabilistic Cache Stampede Prevention", VLDB 2015). It is false
// outside the last part of the TTL, so that a load that takes as long as its value lives does not
// run all the time.
func (w windows) isEarly(ttl, left, cost time.Duration, chance float64) bool {
	if last := min(max(ttl/10, 8*cost), ttl/2); w.early == 0 || left > last {
		return false
	}
	return float64(left) <= float64(cost)*w.early*-math.Log(chance)
}

// stored returns how long Redis keeps a value with this TTL.
func (w windows) stored(ttl time.Duration) time.Duration {
	return ttl + min(max(w.stale, w.fallback), math.MaxInt64-ttl)
}

// stateOf returns the state of an entry at now, for one reader.
func (c *Cache[K, V]) stateOf(e *entry[V], now time.Time) state {
	return c.windows.of(e.life, now, 1-rand.Float64())
}

// judge decodes a value from Redis and returns it with its state.
func (c *Cache[K, V]) judge(id string, value fleet.Value, now time.Time) (found[V], state) {
	e, ok := c.format.decode(id, value.Data)
	switch {
	case value.TooLong || !ok && !c.format.isOfOtherType(id, value.Data):
		c.counts.unfit.Add(1)
		c.log.Warn("redis holds something that is no value of this cache; it is replaced", logonce.Name("key", id), "bytes", len(value.Data))
		return found[V]{}, dead
	case !ok:
		c.counts.otherType.Add(1)
		c.log.Warn("redis holds a value of another type than this process stores: raise Schema by one whenever the type of the values changes", logonce.Name("key", id))
		return found[V]{}, dead
	}
	if c.fleet.Cleared(e.epoch, e.tags()) {
		c.counts.cleared.Add(1)
		return found[V]{}, dead
	}
	e.expired = e.expired || c.fleet.Expired(e.epoch, e.tags())
	state := c.stateOf(e, now)
	return found[V]{entry: e, tier: TierRedis, stale: state >= stale, fallback: state == fallback}, state
}

// left returns how much longer e may be served without waiting for a load.
func (w windows) left(e life, now time.Time) time.Duration {
	if left := e.left(now); left > 0 || e.null || e.hard {
		return left
	}
	return max(time.UnixMilli(e.expires).Add(w.stale).Sub(now), 0)
}

// duringOutage continues a lookup while Redis cannot be read. It serves a value that this process
// has kept and that is less than a second old. An older one is loaded if a place among the
// degraded loads is free at once: as far as anybody knows, the database is healthy. If none is
// free, or the load fails, the kept value is served.
//
// In a cache without Redis no other process changes the value. It is served until
// StaleWhileRevalidate ends, and refreshed in the background past its TTL.
func (c *Cache[K, V]) duringOutage(l *lookup[K, V]) {
	e := c.keptEntry(l.key)
	now := time.Now()
	if e == nil {
		return
	}
	state := c.stateOf(e, now)
	soon := state <= stale && (c.windows.stale > 0 || !c.countsAsStale(e))
	old := found[V]{entry: e, tier: TierLocal, stale: c.countsAsStale(e)}
	serves := soon && old.suits(l.want)
	switch {
	case serves && !c.fleet.Shared():
		l.renews = e.past(now) && !l.want.noLoad()
		l.answered(old)
	case serves && !e.past(now) && e.age(now) < maxStaleLife:
		l.answered(old)
	case soon, c.fleet.Shared() && c.mayReplaceAnError(e, now):
		l.fallBackTo(old)
		l.impatient = c.fleet.Shared() && l.want == nil
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
	if l.fallback.entry == nil || c.stateOf(l.fallback.entry, time.Now()) == dead {
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
		values, now := c.readMany(ctx, ids)
		for i, value := range values {
			if value.Err != nil || len(value.Data) == 0 {
				continue
			}
			if answer, state := c.judge(ids[i], value, now); state != dead {
				reading[i].fallBackTo(answer)
			}
		}
		return nil
	}, func(error) {})
}

// kept returns the value that this process has kept of a key, if it may be served although nobody
// knows whether it is still right.
func (c *Cache[K, V]) kept(l *lookup[K, V]) (old found[V], ok bool) {
	e := c.keptEntry(l.key)
	now := time.Now()
	if e == nil || !c.mayReplaceAnError(e, now) {
		return old, false
	}
	return found[V]{entry: e, tier: TierLocal, stale: c.countsAsStale(e)}.asFallback(l.want)
}

// mayReplaceAnError reports whether a value that this process has kept may be served in place of
// an error: also within its TTL, since a read failed, unless StaleIfError is off.
func (c *Cache[K, V]) mayReplaceAnError(e *entry[V], now time.Time) bool {
	return c.stateOf(e, now) <= fallback && (e.past(now) || c.windows.fallback > 0)
}

// countsAsStale reports whether a kept value counts as stale: it is past its TTL, or another
// process may have changed it without our knowledge.
func (c *Cache[K, V]) countsAsStale(e *entry[V]) bool { return c.fleet.Shared() || e.past(time.Now()) }
