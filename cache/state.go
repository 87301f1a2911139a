package cache

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/levee-go/levee/mutexrebuild"
)

// A state is how far the life of a value has gone. It only ever moves on:
//
//	         TTL ends          StaleWhileRevalidate ends     StaleIfError ends
//	load        │                        │                           │
//	 ├── fresh ─┼──────── stale ─────────┼────────── spare ──────────┼── dead
//	 └─── early ┘
//
// What a read makes of it:
//
//	fresh  the answer
//	early  the answer, and this reader refreshes it in the background
//	stale  the answer, marked, and refreshed in the background
//	spare  loaded; the answer, marked, only if the load fails or takes too long
//	dead   loaded
//
// An invalidation ends a value in any state. Nulls go from fresh to dead: a key
// that has come to exist must not be hidden for longer than NullTTL.
type state uint8

const (
	fresh state = iota
	early
	stale
	spare
	dead
)

// condition is what the state of a value in Redis means for its rebuild.
func (s state) condition() mutexrebuild.Condition {
	switch s {
	case fresh:
		return mutexrebuild.Fresh
	case early, stale:
		return mutexrebuild.Aging
	case spare:
		return mutexrebuild.Spare
	}
	return mutexrebuild.Unfit
}

// windows say when a value goes from one state to the next.
type windows struct {
	stale, spare time.Duration // after the TTL; 0: never in that state
	early        float64       // Options.EarlyRefresh; 0: never
}

// of is the state of e at now. Chance is drawn from (0, 1] each time.
func (w windows) of(e life, now time.Time, chance float64) state {
	switch over := now.Sub(time.UnixMilli(e.expires)); {
	case over < 0 && !e.null && w.isEarly(e.ttl(), -over, e.cost, chance):
		return early
	case over < 0:
		return fresh
	case e.null:
		return dead
	case over < w.stale:
		return stale
	case over < w.spare:
		return spare
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
	return ttl + min(max(w.stale, w.spare), math.MaxInt64-ttl)
}

// stateOf is the state of an entry now, for one reader.
func (c *Cache[K, V]) stateOf(e *entry[V]) state {
	return c.windows.of(e.life, time.Now(), 1-rand.Float64())
}
