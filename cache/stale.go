package cache

import (
	"math"
	"time"
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

func (s state) String() string {
	return [...]string{fresh: "fresh", early: "fresh", stale: "stale", fallback: "fallback", dead: "dead"}[s]
}

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

// left returns how much longer e may be served without waiting for a load.
func (w windows) left(e life, now time.Time) time.Duration {
	if left := e.left(now); left > 0 || e.null || e.hard {
		return left
	}
	return max(time.UnixMilli(e.expires).Add(w.stale).Sub(now), 0)
}
