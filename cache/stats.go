package cache

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/mutexrebuild"
)

// A Tier says where an answer came from. The zero Tier, "none", belongs to an error.
type Tier uint8

const (
	TierLocal  Tier = iota + 1 // the local tier
	TierFilter                 // the filter: the key does not exist
	TierRedis                  // Redis
	TierSource                 // the loader
)

// String returns the tier's name in lower case.
func (t Tier) String() string {
	if int(t) < len(tierNames) {
		return tierNames[t]
	}
	return "unknown"
}

var tierNames = [...]string{"none", "local", "filter", "redis", "source"}

// A Result is a value and where it came from.
type Result[V any] struct {
	Value V // shared with other callers, unless there is a Source.Clone
	// Tier is where the answer came from. A caller that shared the read or the load of another
	// caller gets that caller's Tier.
	Tier Tier
	// Age is how long ago the value was read from the source, as far as the
	// clocks of the hosts agree.
	Age time.Duration
	// Stale says that the value was past its TTL, or that this process had kept it and served
	// it because Redis or the source is out of reach: another process may have invalidated it
	// in the meantime.
	Stale bool
}

// Stats counts what a cache has done since it was made. Every Get ends as one of
// Local, Redis, Null, Filter, Loaded, Joined, Stale, NotCached and Errors.
type Stats struct {
	Gets      uint64 // Gets that ended or are running
	Local     uint64 // values from the local tier
	Redis     uint64 // values from Redis
	Null      uint64 // nulls from the local tier or from Redis
	Filter    uint64 // keys that the filter denied
	Loaded    uint64 // values and nulls from the source
	Joined    uint64 // shared the flight of another caller
	Stale     uint64 // values past their TTL, or kept by this process while Redis was out of reach
	NotCached uint64 // reads with Reads.NoLoad that found nothing
	Errors    uint64 // errors other than ErrNotFound and ErrNotCached

	// Special cases of the above.
	Fallbacks  uint64 // of Stale and Local: because a load failed or took too long
	HeldErrors uint64 // of Errors: the error of a load that failed a moment ago

	Loads        uint64 // calls of the source that began
	LoadErrors   uint64 // Loads that ended in an error, a panic or a timeout
	Degraded     uint64 // loads of a key without a lease: no answer of Redis, WaitBudget spent, or an invalidation pending
	BesideWriter uint64 // loads of a key while a writer held it; their values are not published
	Unpublished  uint64 // values that could not be stored, because of their size or TTL
	Altered      uint64 // values that JSON would have changed, and that are not stored
	Unfit        uint64 // bytes in Redis that were no value of their key
	OtherType    uint64 // values in Redis of another type: two releases with one Schema
	Cleared      uint64 // values found in Redis that a Clear or ClearTags had ended
	Refreshes    uint64 // refreshes that began in the background
	Refreshed    uint64 // Refreshes that brought a new value
	FilterFalse  uint64 // keys that the filter let pass and the source did not have
	FilterWrong  uint64 // existing keys that the filter denied; at most one key in 5 s is checked

	NotInvalidated uint64 // calls that changed keys and that Redis did not confirm at once

	LoadTime   Histogram // duration of each load, without its wait in the breaker's queue
	FlightWait Histogram // wait for another caller of this process to read or load the key
	LeaseWait  Histogram // wait for another process to load the key
	RedisRead  Histogram // duration of reads that Redis answered; up to 256 keys of a GetMany are one read
	StaleAge   Histogram // age of the values that Stale counts, since their load
	WriteTime  Histogram // wait of writers for Redis: each hold, Invalidate, Set, Clear and Announce, and the end of each Write

	// Live reports whether this process knows what others have invalidated and cleared: their
	// messages arrive, and what they cleared could be read.
	Live bool

	FilterRebuild FilterRebuild      // the last rebuild that this process has run
	Follow        feed.Stats         // change feeds, see [Follow]
	Audit         AuditStats         // see audit.Run
	Shadow        ShadowStats        // see audit.Shadow
	Ledger        LedgerStats        // see audit.Ledger
	LocalTier     localcache.Stats   // the tier in this process
	Rebuild       mutexrebuild.Stats // leases, waiting, outages and invalidations
	Breaker       breaker.Stats      // Options.Breaker, including its calls from other caches
}

// AuditStats counts what package audit has found in this process.
type AuditStats struct {
	Compared uint64    // values that were compared with the source
	Raced    uint64    // Compared values that differed and were invalidated in time, or were equal at a second look
	Stale    uint64    // Compared values that differed and that nobody had invalidated
	Healed   uint64    // Stale values that the audit has invalidated
	Failed   uint64    // comparisons that failed, for example without an answer of the source or of Redis
	StaleAge Histogram // age of the stale values, since their load
}

// ShadowStats counts what an audit.Shadow of the cache has found in this process. Each read that
// went to the cache too is one of the first seven, by what the cache would have answered.
type ShadowStats struct {
	Local   uint64 // a value from the local tier
	Redis   uint64 // a value from Redis
	Null    uint64 // "does not exist", from the local tier or from Redis
	Filter  uint64 // "does not exist", by the filter
	Loaded  uint64 // nothing: it had to load, or to wait for a load
	Stale   uint64 // a value past its TTL
	Failed  uint64 // an error, such as that of its loader, or of a key that it does not take
	Skipped uint64 // reads that did not go to the cache, as too many would have at a time

	// Answers of Local, Redis, Null and Filter are compared with the source's.
	Equal    uint64 // equal
	Raced    uint64 // differed at first, and was equal, invalidated or gone when it was read again
	Unjudged uint64 // differed at first, and was not read again: an error, too many, or a row of a lagging source that went on changing
	Differs  uint64 // differed still: a reader would have been served an old or another value
}

// HitRatio returns the part of reads that the cache would have answered without its source, 0 to 1.
func (s ShadowStats) HitRatio() float64 {
	hits := s.Local + s.Redis + s.Null + s.Filter + s.Stale
	if hits == 0 {
		return 0
	}
	return float64(hits) / float64(hits+s.Loaded+s.Failed)
}

// LedgerStats counts what an audit.Ledger of the cache has found in this process.
type LedgerStats struct {
	Changes uint64 // changes of keys of its share that it has learned of
	Skipped uint64 // of these: not looked at, as too many keys were under watch; and looks that say nothing, see audit.Ledger
	Failed  uint64 // looks that failed, such as without an answer of Redis or the source, changes that Keys failed for, and failures of the feed

	// Looks at one tier, so long after a change, or after a value was first seen to differ.
	Looked1s, Looked2s, Looked10s, Looked60s uint64
	// Of these: readers were served a value from before a change that was at least so long ago.
	Old1s, Old2s, Old10s, Old60s uint64
}

type counter = atomic.Uint64

// counters counts outcomes. The local tier counts most hits of its values itself.
type counters struct {
	asked                                                                                  counter
	overtaken                                                                              counter // hits of values in the local tier that a ClearTags had ended
	local, null, filter, redis, loaded, joined, stale, notCached, errors                   counter
	fallbacks, heldErrors                                                                  counter
	loads, loadErrors, degraded, besideWriter                                              counter
	unpublished, unfit, otherType, cleared, refreshes, refreshed, filterFalse, filterWrong counter
	notInvalidated                                                                         counter
	audit                                                                                  inside.Counts
	shadow                                                                                 inside.ShadowCounts
	ledger                                                                                 inside.LedgerCounts
}

// count counts an answer. first says that the caller is the first of the callers that share it.
func (c *counters) count(null bool, tier Tier, stale, fallback, first bool) {
	if fallback {
		c.fallbacks.Add(1)
	}
	switch {
	case stale:
		c.stale.Add(1)
	case !first:
		c.joined.Add(1)
	case tier == TierSource:
		c.loaded.Add(1)
	case tier == TierFilter:
		c.filter.Add(1)
	case null:
		c.null.Add(1)
	case tier == TierLocal:
		c.local.Add(1)
	default:
		c.redis.Add(1)
	}
}

// Stats returns a snapshot of the counters. They are read one after another, so while calls run
// they may not all be of the same moment.
func (c *Cache[K, V]) Stats() Stats {
	n, t := &c.counts, &c.times
	overtaken := n.overtaken.Load() // read before Hits, which includes them
	local := c.local.Stats()
	return Stats{
		Gets:  local.Hits - overtaken + n.asked.Load(),
		Local: local.Hits - overtaken + n.local.Load(), Redis: n.redis.Load(), Null: n.null.Load(),
		Filter: n.filter.Load(), Loaded: n.loaded.Load(),
		Joined: n.joined.Load(), Stale: n.stale.Load(), NotCached: n.notCached.Load(), Errors: n.errors.Load(),
		Fallbacks: n.fallbacks.Load(), HeldErrors: n.heldErrors.Load(),
		Loads: n.loads.Load(), LoadErrors: n.loadErrors.Load(), Degraded: n.degraded.Load(),
		BesideWriter: n.besideWriter.Load(), Unpublished: n.unpublished.Load(), Altered: c.values.format.altered(), Unfit: n.unfit.Load(), OtherType: n.otherType.Load(), Cleared: n.cleared.Load(),
		Refreshes: n.refreshes.Load(), Refreshed: n.refreshed.Load(), FilterFalse: n.filterFalse.Load(), FilterWrong: n.filterWrong.Load(),
		NotInvalidated: n.notInvalidated.Load(),
		LoadTime:       t.load.histogram(&latencies), FlightWait: t.flightWait.histogram(&latencies),
		LeaseWait: t.leaseWait.histogram(&latencies), RedisRead: t.read.histogram(&latencies), StaleAge: t.stale.histogram(&ages),
		WriteTime:     t.write.histogram(&latencies),
		FilterRebuild: c.filter.lastRebuild(),
		Live:          c.fleet.Live(), Follow: c.fed.Stats(),
		Audit: AuditStats{
			Compared: n.audit.Compared.Load(), Raced: n.audit.Raced.Load(), Stale: n.audit.Stale.Load(),
			Healed: n.audit.Healed.Load(), Failed: n.audit.Failed.Load(), StaleAge: t.audit.histogram(&ages),
		},
		Shadow: ShadowStats{
			Local: n.shadow.Local.Load(), Redis: n.shadow.Redis.Load(), Null: n.shadow.Null.Load(), Filter: n.shadow.Filter.Load(),
			Loaded: n.shadow.Loaded.Load(), Stale: n.shadow.Stale.Load(), Failed: n.shadow.Failed.Load(), Skipped: n.shadow.Skipped.Load(),
			Equal: n.shadow.Equal.Load(), Raced: n.shadow.Raced.Load(), Unjudged: n.shadow.Unjudged.Load(), Differs: n.shadow.Differs.Load(),
		},
		Ledger:    ledgerStats(&n.ledger),
		LocalTier: localcache.Stats(local), Rebuild: mutexrebuild.Stats(c.fleet.Stats()), Breaker: c.o.Breaker.Stats(),
	}
}

// A Histogram counts durations in buckets.
type Histogram struct {
	// Bounds are the upper bounds of the buckets, in rising order. They are the same for all
	// Stats of one release, and nobody may change them. An empty Histogram may have none.
	Bounds []time.Duration
	// Counts has the number of durations up to each bound and over the previous one, and then the
	// number over all bounds.
	Counts []uint64
	Sum    time.Duration // sum of all durations
}

// Count returns the number of durations.
func (h Histogram) Count() (n uint64) {
	for _, count := range h.Counts {
		n += count
	}
	return n
}

// String returns the number of durations and their average.
func (h Histogram) String() string {
	n := h.Count()
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("%d of %v on average", n, h.Sum/time.Duration(n))
}

// buckets is the number of bounds of a Histogram.
const buckets = 17

// bounds are the bounds of a kind of histogram.
type bounds [buckets]time.Duration

var (
	latencies = bounds{
		50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
		time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
		50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
	}
	ages = bounds{
		time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 20 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 12 * time.Hour, 24 * time.Hour,
	}
)

// times are the durations that a cache measures. It measures no local hit, because reading the
// clock takes longer than the hit.
type times struct {
	load, flightWait, leaseWait, read, write tally // in latencies
	stale, audit                             tally // in ages
}

// A tally is a Histogram that is still being filled.
type tally struct {
	counts [buckets + 1]atomic.Uint64 // the last one counts durations over all bounds
	sum    atomic.Int64
}

func (t *tally) add(b *bounds, d time.Duration) {
	i := 0
	for i < len(b) && d > b[i] { // from below: most durations are short
		i++
	}
	t.counts[i].Add(1)
	t.sum.Add(int64(d))
}

func (t *tally) histogram(b *bounds) Histogram {
	h := Histogram{Bounds: b[:], Counts: make([]uint64, len(t.counts)), Sum: time.Duration(t.sum.Load())}
	for i := range t.counts {
		h.Counts[i] = t.counts[i].Load()
	}
	return h
}
