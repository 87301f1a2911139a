package cache

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/flight"
)

// A state is how far the life of a value has gone. It only ever moves on:
//
//	         TTL ends          StaleWhileRevalidate ends     StaleIfError ends
//	load        │                        │                           │
//	 ├── fresh ─┼──────── stale ─────────┼──────── fallback ─────────┼── dead
//	 └─── early ┘
//
// What a read makes of it:
//
//	fresh     the answer
//	early     the answer, and this reader refreshes it in the background
//	stale     the answer, marked, and refreshed in the background
//	fallback  loaded; the answer, marked, only if the load fails or takes too long
//	dead      loaded
//
// An invalidation ends a value in any state. Nulls go from fresh to dead: a key
// that has come to exist must not be hidden for longer than NullTTL.
type state uint8

const (
	fresh state = iota
	early
	stale
	fallback
	dead
)

// windows say when a value goes from one state to the next.
type windows struct {
	stale, fallback time.Duration // after the TTL; 0: never in that state
	early           float64       // Options.EarlyRefresh; 0: never
}

// of is the state of e at now. Chance is drawn from (0, 1] each time.
func (w windows) of(e life, now time.Time, chance float64) state {
	switch over := now.Sub(time.UnixMilli(e.expires)); {
	case over < 0 && !e.null && w.isEarly(e.ttl(), -over, time.Duration(e.cost)*time.Millisecond, chance):
		return early
	case over < 0:
		return fresh
	case e.null:
		return dead
	case over < w.stale:
		return stale
	case over < w.fallback:
		return fallback
	}
	return dead
}

// isEarly lets a reader be the one to refresh a value that many read, before it
// ends: the more likely the nearer the end is and the longer a load takes. With
// the exponential draw the expected number of refreshes does not depend on the
// number of readers (Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic
// Cache Stampede Prevention", VLDB 2015). Only in the last part of the TTL, so that
// a load that takes as long as its value lives does not run all the time.
func (w windows) isEarly(ttl, left, cost time.Duration, chance float64) bool {
	if last := min(max(ttl/10, 8*cost), ttl/2); w.early == 0 || left > last {
		return false
	}
	return float64(left) <= float64(cost)*w.early*-math.Log(chance)
}

// stored is how long Redis keeps a value whose TTL this is.
func (w windows) stored(ttl time.Duration) time.Duration {
	return ttl + min(max(w.stale, w.fallback), math.MaxInt64-ttl)
}

// stateOf is the state of an entry at now, for one reader.
func (c *Cache[K, V]) stateOf(e *entry[V], now time.Time) state {
	return c.windows.of(e.life, now, 1-rand.Float64())
}

// left is how long e goes on to answer without a load.
func (w windows) left(e life, now time.Time) time.Duration {
	if left := e.left(now); left > 0 || e.null {
		return left
	}
	return max(time.UnixMilli(e.expires).Add(w.stale).Sub(now), 0)
}

// staleDuringOutage returns the value that this process has kept of a key while there
// is no Redis to ask. A load is left to the background: all processes are doing the
// same. In a cache without Redis nobody else changes the value, so it is loaded only
// past its TTL.
func (c *Cache[K, V]) staleDuringOutage(ctx context.Context, key K, id string) (found[V], bool) {
	e := c.local.Kept(key)
	now := time.Now()
	if e == nil || c.windows.stale == 0 && c.countsAsStale(e) || c.stateOf(e, now) > stale {
		return found[V]{}, false
	}
	if e.past(now) || c.fleet.Shared() && e.age(now) >= maxStaleLife {
		c.refresh(ctx, key, id, nil)
	}
	return found[V]{entry: e, tier: TierLocal, stale: c.countsAsStale(e)}, true
}

// staleOnError returns the value that this process has kept of a key that could not be
// read: its load failed, or ctx of its caller ended. Other processes may have invalidated
// it without our knowledge, so it is marked. There is none for a closed cache and for a
// load that asks for its own key.
func (c *Cache[K, V]) staleOnError(key K, err error) (found[V], bool) {
	if errors.Is(err, ErrClosed) || errors.Is(err, flight.ErrClosed) || errors.Is(err, flight.ErrReentrant) {
		return found[V]{}, false
	}
	e := c.local.Kept(key)
	now := time.Now()
	// A value within its TTL answers too, since a read failed, unless StaleIfError is off.
	if e == nil || c.stateOf(e, now) > fallback || !e.past(now) && c.windows.fallback == 0 {
		return found[V]{}, false
	}
	return found[V]{entry: e, tier: TierLocal, stale: c.countsAsStale(e), fallback: true}, true
}

// staleWhileSlow is staleOnError for a load that takes longer than SoftTimeout. As
// nothing has failed, the value must be one whose invalidation this process would have
// heard of.
func (c *Cache[K, V]) staleWhileSlow(key K) (found[V], bool) {
	if !c.fleet.Live() {
		return found[V]{}, false
	}
	return c.staleOnError(key, nil)
}

// countsAsStale reports whether a value that this process has kept counts as stale: it
// is past its TTL, or another process may have changed it without our knowledge.
func (c *Cache[K, V]) countsAsStale(e *entry[V]) bool { return c.fleet.Shared() || e.past(time.Now()) }

// rereadFallback reads the fallback of a flight again for callers who joined after it
// was read.
func (c *Cache[K, V]) rereadFallback(ctx context.Context, f *flight.Flight[found[V]]) {
	if !c.loading.begin() {
		return
	}
	defer c.loading.end()
	reread := func() (answer found[V], ok bool) {
		value, now := c.readOne(ctx, f.ID)
		if value.Err != nil || len(value.Data) == 0 {
			return answer, false
		}
		answer, state := c.judge(f.ID, value, now)
		answer.fallback = true
		return answer, state != dead
	}
	// A hook of the user's client may panic. It has to be contained here, since this
	// goroutine has no caller; those who wait go on to wait for the load.
	contain.Call(func() error { f.RereadFallback(reread); return nil }, func(error) {})
}
