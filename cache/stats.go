package cache

import (
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/mutexrebuild"
)

// A Tier says where an answer came from.
type Tier uint8

const (
	TierNone   Tier = iota // there is no answer
	TierLocal              // the local tier
	TierFilter             // the filter: the key does not exist
	TierRedis              // Redis
	TierSource             // the loader
)

// String returns the tier's name in lower case.
func (t Tier) String() string {
	if int(t) < len(tierNames) {
		return tierNames[t]
	}
	return "unknown"
}

var tierNames = [...]string{"none", "local", "filter", "redis", "source"}

func tierOf[V any](got mutexrebuild.Result[*entry[V]]) Tier {
	if got.Origin == mutexrebuild.Found {
		return TierRedis
	}
	return TierSource
}

// A Result is a value and where it came from.
type Result[V any] struct {
	Value V
	Tier  Tier
	// Age is how long ago the value was read from the source, as far as the
	// clocks of the hosts agree.
	Age time.Duration
	// Stale says that the value was past its TTL, or one that this process had kept
	// and that answers because Redis or the source is out of reach: another process
	// may have invalidated it unheard.
	Stale bool
}

// Stats counts what a cache has done since it was made. Every Get ends as one of
// Local, Redis, Null, Filter, Loaded, Joined, Stale and Errors.
type Stats struct {
	Gets   uint64 // those that ended, and those under way
	Local  uint64 // values from the local tier
	Redis  uint64 // values from Redis
	Null   uint64 // nulls from the local tier or from Redis
	Filter uint64 // refused by the filter
	Loaded uint64 // values and nulls from the source
	Joined uint64 // shared the flight of another caller
	Stale  uint64 // values past their TTL, or kept by this process while Redis was out of reach
	Errors uint64 // those without an answer, by whatever error but ErrNotFound

	// FilterFalse counts keys that the filter let pass and the source did not have.
	FilterFalse uint64
	// Live says that invalidations of other processes arrive.
	Live bool

	LocalTier localcache.Stats
	Rebuild   mutexrebuild.Stats
	Breaker   breaker.Stats
}

type counter = atomic.Uint64

// counters counts outcomes. Most hits of values in the local tier are counted there.
type counters struct {
	asked                                                     counter
	local, null, filter, redis, loaded, joined, stale, errors counter
	filterFalse                                               counter
}

// of picks the outcome of a read that a flight answered.
func (c *counters) of(null, past, first bool, origin mutexrebuild.Origin) *counter {
	switch {
	case past:
		return &c.stale
	case !first:
		return &c.joined
	case origin != mutexrebuild.Found:
		return &c.loaded
	case null:
		return &c.null
	}
	return &c.redis
}

// ofKept picks the outcome of a read that a value answered which this process had
// kept.
func (c *counters) ofKept(doubtful bool) *counter {
	if doubtful {
		return &c.stale
	}
	return &c.local
}

// Stats returns a snapshot of the counters. They are read one after another, so
// while calls are under way they are not all of one moment.
func (c *Cache[K, V]) Stats() Stats {
	local := c.local.Stats()
	return Stats{
		Gets:  local.Hits + c.counts.asked.Load(),
		Local: local.Hits + c.counts.local.Load(), Redis: c.counts.redis.Load(), Null: c.counts.null.Load(),
		Filter: c.counts.filter.Load(), Loaded: c.counts.loaded.Load(),
		Joined: c.counts.joined.Load(), Stale: c.counts.stale.Load(), Errors: c.counts.errors.Load(),
		FilterFalse: c.counts.filterFalse.Load(),
		Live:        c.rebuild.Live(),
		LocalTier:   local, Rebuild: c.rebuild.Stats(), Breaker: c.breaker.Stats(),
	}
}
