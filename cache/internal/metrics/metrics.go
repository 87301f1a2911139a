// Package metrics lists levee's metrics, with the name of each and how its value is read from a
// snapshot, and defines a [Set] of the things that an exporter shows. The modules cacheprom and
// cacheotel export them. These may have another version than this package, so its exported names
// must stay.
package metrics

import (
	"math"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/lock"
)

// A Family is a metric, and how its values are read from a snapshot S. It has one of Value,
// Outcomes and Histogram.
type Family[S any] struct {
	Name, Help string                     // Name is the name in Prometheus
	Gauge      bool                       // false: a counter
	Of         Part                       // the part that a cache must have, otherwise the family is absent
	Fold       func(a, b float64) float64 // joins gauges of two things of one name; nil: their sum
	Value      func(*S) float64
	Outcomes   []Outcome[S]
	ByAge      bool // Outcomes are ages: the label is "after", not "outcome"
	Histogram  func(*S) cache.Histogram
}

// An Outcome is one value of a family that has several.
type Outcome[S any] struct {
	Name  string
	Value func(*S) uint64
}

// A Part is an optional part of a cache.
type Part uint8

// The parts of a cache.
const (
	Redis  Part = 1 << iota // a client was given
	Filter                  // Options.Filter is there
	Feed                    // Follow was called
	Audit                   // Audit has compared something
	Local                   // the local tier is on
	Shadow                  // a Shadow has asked it
	Ledger                  // a Ledger has learned of a change, or failed
)

// Caches are the metrics of a cache. All outcomes of gets_total are exported for every cache.
var Caches = []Family[cache.Stats]{
	counters("levee_cache_gets_total", "Gets, by where their answers came from.",
		Outcome[cache.Stats]{"local", func(s *cache.Stats) uint64 { return s.Local }},
		Outcome[cache.Stats]{"redis", func(s *cache.Stats) uint64 { return s.Redis }},
		Outcome[cache.Stats]{"null", func(s *cache.Stats) uint64 { return s.Null }},
		Outcome[cache.Stats]{"filter", func(s *cache.Stats) uint64 { return s.Filter }},
		Outcome[cache.Stats]{"loaded", func(s *cache.Stats) uint64 { return s.Loaded }},
		Outcome[cache.Stats]{"joined", func(s *cache.Stats) uint64 { return s.Joined }},
		Outcome[cache.Stats]{"stale", func(s *cache.Stats) uint64 { return s.Stale }},
		Outcome[cache.Stats]{"not_cached", func(s *cache.Stats) uint64 { return s.NotCached }},
		Outcome[cache.Stats]{"error", func(s *cache.Stats) uint64 { return s.Errors }}),
	counter("levee_cache_fallbacks_total", "Gets that an old value answered because a load failed or took too long.",
		func(s *cache.Stats) uint64 { return s.Fallbacks }),
	counter("levee_cache_held_errors_total", "Gets that got the error of a load that had failed a moment before.",
		func(s *cache.Stats) uint64 { return s.HeldErrors }),

	counter("levee_cache_loads_total", "Calls of the source.", func(s *cache.Stats) uint64 { return s.Loads }),
	counter("levee_cache_load_errors_total", "Calls of the source that failed.", func(s *cache.Stats) uint64 { return s.LoadErrors }),
	counter("levee_cache_degraded_loads_total", "Loads of a key without a lease.", func(s *cache.Stats) uint64 { return s.Degraded }).of(Redis),
	counter("levee_cache_loads_beside_writer_total", "Loads of a key that a writer held.",
		func(s *cache.Stats) uint64 { return s.BesideWriter }),
	counter("levee_cache_commits_refused_total", "Loaded values that were not published, since an invalidation had overtaken them.",
		func(s *cache.Stats) uint64 { return s.Rebuild.Refused }),
	counters("levee_cache_refreshes_total", "Loads in the background of values in use.",
		Outcome[cache.Stats]{"begun", func(s *cache.Stats) uint64 { return s.Refreshes }},
		Outcome[cache.Stats]{"refreshed", func(s *cache.Stats) uint64 { return s.Refreshed }}),
	counter("levee_cache_filter_false_total", "Keys that the filter let pass and the source did not have.",
		func(s *cache.Stats) uint64 { return s.FilterFalse }).of(Filter),
	counter("levee_cache_filter_wrong_total", "Keys that the filter denied although they exist, of those that were looked at.",
		func(s *cache.Stats) uint64 { return s.FilterWrong }).of(Filter),
	counter("levee_cache_not_invalidated_total", "Calls of writers that Redis did not confirm at once.",
		func(s *cache.Stats) uint64 { return s.NotInvalidated }).of(Redis),
	counter("levee_cache_unpublished_total", "Values that could not be stored, by their size or TTL.",
		func(s *cache.Stats) uint64 { return s.Unpublished }).of(Redis),
	counter("levee_cache_altered_total", "Values that would come back from JSON as others, and were not stored.",
		func(s *cache.Stats) uint64 { return s.Altered }).of(Redis),
	counter("levee_cache_unfit_total", "Bytes in Redis that were no value of their key.", func(s *cache.Stats) uint64 { return s.Unfit }).of(Redis),
	counter("levee_cache_other_type_total", "Values met in Redis of another type: two releases with one Schema.",
		func(s *cache.Stats) uint64 { return s.OtherType }).of(Redis),
	counter("levee_cache_cleared_total", "Values met in Redis that a Clear had ended.", func(s *cache.Stats) uint64 { return s.Cleared }).of(Redis),
	counter("levee_cache_foreign_total", "Keys of another type met under the cache's names.",
		func(s *cache.Stats) uint64 { return s.Rebuild.Foreign }).of(Redis),

	histogram("levee_cache_load_seconds", "Time of a call of the source.", func(s *cache.Stats) cache.Histogram { return s.LoadTime }),
	histogram("levee_cache_flight_wait_seconds", "Wait of a caller for what another caller of the process was reading or loading.",
		func(s *cache.Stats) cache.Histogram { return s.FlightWait }),
	histogram("levee_cache_lease_wait_seconds", "Wait for what another process was loading.",
		func(s *cache.Stats) cache.Histogram { return s.LeaseWait }).of(Redis),
	histogram("levee_cache_redis_read_seconds", "Time until Redis answered a read.",
		func(s *cache.Stats) cache.Histogram { return s.RedisRead }).of(Redis),
	histogram("levee_cache_write_seconds", "Wait of a writer for Redis, without its transaction.",
		func(s *cache.Stats) cache.Histogram { return s.WriteTime }),
	histogram("levee_cache_stale_age_seconds", "Age of the values that answered past their TTL.",
		func(s *cache.Stats) cache.Histogram { return s.StaleAge }),

	counter("levee_cache_unanswered_total", "Operations of keys that Redis did not answer, or was not asked.",
		func(s *cache.Stats) uint64 { return s.Rebuild.Unknown }).of(Redis),
	gauge("levee_cache_outage", "1 while Redis, or a node of the cluster, is not used because it does not reply.",
		func(s *cache.Stats) float64 { return is(s.Rebuild.Outage) }).fold(math.Max).of(Redis),
	counter("levee_cache_outages_total", "Outages that began.", func(s *cache.Stats) uint64 { return s.Rebuild.Outages }).of(Redis),
	gauge("levee_cache_messages_live", "1 while invalidations of other processes arrive.",
		func(s *cache.Stats) float64 { return is(s.Live) }).fold(math.Min).of(Redis),
	gauge("levee_cache_invalidations_pending", "Invalidations that Redis has not confirmed yet.",
		func(s *cache.Stats) float64 { return float64(s.Rebuild.Unconfirmed) }).of(Redis),
	counters("levee_cache_invalidations_unconfirmed_total", "Invalidations that Redis did not confirm at once.",
		Outcome[cache.Stats]{"queued", func(s *cache.Stats) uint64 { return s.Rebuild.Queued }},
		Outcome[cache.Stats]{"confirmed", func(s *cache.Stats) uint64 { return s.Rebuild.Retried }},
		Outcome[cache.Stats]{"dropped", func(s *cache.Stats) uint64 { return s.Rebuild.Dropped }}).of(Redis),
	counters("levee_cache_lease_waits_total", "Ends of waits for the lease of another process: by a message, to look without one, or without result.",
		Outcome[cache.Stats]{"message", func(s *cache.Stats) uint64 { return s.Rebuild.Wakes }},
		Outcome[cache.Stats]{"look", func(s *cache.Stats) uint64 { return s.Rebuild.Polls }},
		Outcome[cache.Stats]{"gave_up", func(s *cache.Stats) uint64 { return s.Rebuild.GaveUp }}).of(Redis),

	gauge("levee_cache_feed_wanted", "1 while a feed of changes is to be followed for the cache.",
		func(s *cache.Stats) float64 { return is(s.Follow.Wanted) }).of(Feed).fold(math.Max),
	gauge("levee_cache_feed_following", "1 while this process reads a feed of changes for the cache.",
		func(s *cache.Stats) float64 { return is(s.Follow.Following) }).fold(math.Max).of(Feed),
	counter("levee_cache_feed_batches_total", "Batches of a feed that were dealt with.",
		func(s *cache.Stats) uint64 { return s.Follow.Batches }).of(Feed),
	counter("levee_cache_feed_changes_total", "Changes of rows that concerned the cache.",
		func(s *cache.Stats) uint64 { return s.Follow.Changes }).of(Feed),
	counter("levee_cache_feed_failures_total", "Failures of a feed, of its routes or of Redis that were tried again.",
		func(s *cache.Stats) uint64 { return s.Follow.Failures }).of(Feed),
	counter("levee_cache_feed_lost_total", "Positions that a feed had lost, after which the cache was cleared.",
		func(s *cache.Stats) uint64 { return s.Follow.Lost }).of(Feed),
	gauge("levee_cache_feed_lag_seconds", "Age of the changes that are being dealt with, 0 if all are.",
		func(s *cache.Stats) float64 { return s.Follow.Lag.Seconds() }).fold(math.Max).of(Feed),
	gauge("levee_cache_feed_behind", "Bytes of its log, or rows of an outbox, that the database holds and that are not dealt with.",
		func(s *cache.Stats) float64 { return float64(s.Follow.Behind) }).fold(math.Max).of(Feed),

	counters("levee_cache_audit_total", "Values that an Audit has compared with the source, and what came of it.",
		Outcome[cache.Stats]{"compared", func(s *cache.Stats) uint64 { return s.Audit.Compared }},
		Outcome[cache.Stats]{"raced", func(s *cache.Stats) uint64 { return s.Audit.Raced }},
		Outcome[cache.Stats]{"stale", func(s *cache.Stats) uint64 { return s.Audit.Stale }},
		Outcome[cache.Stats]{"healed", func(s *cache.Stats) uint64 { return s.Audit.Healed }},
		Outcome[cache.Stats]{"failed", func(s *cache.Stats) uint64 { return s.Audit.Failed }}).of(Audit),
	counters("levee_cache_shadow_total", "Reads of a Shadow, by what the cache would have answered.",
		Outcome[cache.Stats]{"local", func(s *cache.Stats) uint64 { return s.Shadow.Local }},
		Outcome[cache.Stats]{"redis", func(s *cache.Stats) uint64 { return s.Shadow.Redis }},
		Outcome[cache.Stats]{"null", func(s *cache.Stats) uint64 { return s.Shadow.Null }},
		Outcome[cache.Stats]{"filter", func(s *cache.Stats) uint64 { return s.Shadow.Filter }},
		Outcome[cache.Stats]{"loaded", func(s *cache.Stats) uint64 { return s.Shadow.Loaded }},
		Outcome[cache.Stats]{"stale", func(s *cache.Stats) uint64 { return s.Shadow.Stale }},
		Outcome[cache.Stats]{"failed", func(s *cache.Stats) uint64 { return s.Shadow.Failed }},
		Outcome[cache.Stats]{"skipped", func(s *cache.Stats) uint64 { return s.Shadow.Skipped }}).of(Shadow),
	counters("levee_cache_shadow_compared_total", "Answers of a cache that a Shadow has compared with its source.",
		Outcome[cache.Stats]{"equal", func(s *cache.Stats) uint64 { return s.Shadow.Equal }},
		Outcome[cache.Stats]{"raced", func(s *cache.Stats) uint64 { return s.Shadow.Raced }},
		Outcome[cache.Stats]{"unjudged", func(s *cache.Stats) uint64 { return s.Shadow.Unjudged }},
		Outcome[cache.Stats]{"differs", func(s *cache.Stats) uint64 { return s.Shadow.Differs }}).of(Shadow),
	counters("levee_audit_changes_total", "Changes that a Ledger has learned of, and what went wrong.",
		Outcome[cache.Stats]{"followed", func(s *cache.Stats) uint64 { return s.Ledger.Changes }},
		Outcome[cache.Stats]{"skipped", func(s *cache.Stats) uint64 { return s.Ledger.Skipped }},
		Outcome[cache.Stats]{"failed", func(s *cache.Stats) uint64 { return s.Ledger.Failed }}).of(Ledger),
	byAge("levee_audit_looked_total", "Looks of a Ledger at one tier, so long after a change.",
		Outcome[cache.Stats]{"1s", func(s *cache.Stats) uint64 { return s.Ledger.Looked1s }},
		Outcome[cache.Stats]{"2s", func(s *cache.Stats) uint64 { return s.Ledger.Looked2s }},
		Outcome[cache.Stats]{"10s", func(s *cache.Stats) uint64 { return s.Ledger.Looked10s }},
		Outcome[cache.Stats]{"60s", func(s *cache.Stats) uint64 { return s.Ledger.Looked60s }}).of(Ledger),
	byAge("levee_audit_old_total", "Of these, those that found a value from before the change.",
		Outcome[cache.Stats]{"1s", func(s *cache.Stats) uint64 { return s.Ledger.Old1s }},
		Outcome[cache.Stats]{"2s", func(s *cache.Stats) uint64 { return s.Ledger.Old2s }},
		Outcome[cache.Stats]{"10s", func(s *cache.Stats) uint64 { return s.Ledger.Old10s }},
		Outcome[cache.Stats]{"60s", func(s *cache.Stats) uint64 { return s.Ledger.Old60s }}).of(Ledger),
	histogram("levee_cache_audit_stale_age_seconds", "Age of the stale values that an Audit has found.",
		func(s *cache.Stats) cache.Histogram { return s.Audit.StaleAge }).of(Audit),

	gauge("levee_cache_local_bytes", "Size of the values in the local tier.",
		func(s *cache.Stats) float64 { return float64(s.LocalTier.Bytes) }).of(Local),
	gauge("levee_cache_local_null_bytes", "Size of the nulls in the local tier.",
		func(s *cache.Stats) float64 { return float64(s.LocalTier.NullBytes) }).of(Local),
	counters("levee_cache_local_fills_total", "Entries for the local tier.",
		Outcome[cache.Stats]{"filled", func(s *cache.Stats) uint64 { return s.LocalTier.Filled }},
		Outcome[cache.Stats]{"outdated", func(s *cache.Stats) uint64 { return s.LocalTier.Outdated }},
		Outcome[cache.Stats]{"refused", func(s *cache.Stats) uint64 { return s.LocalTier.Refused }}).of(Local),
	counter("levee_cache_local_evicted_total", "Entries that others pushed out of the local tier.",
		func(s *cache.Stats) uint64 { return s.LocalTier.Evicted }).of(Local),
	counter("levee_cache_local_rejected_total", "Entries that the local tier did not keep because others were wanted more.",
		func(s *cache.Stats) uint64 { return s.LocalTier.Rejected }).of(Local),
	counter("levee_cache_local_flushes_total", "Times that the local tier was emptied.",
		func(s *cache.Stats) uint64 { return s.LocalTier.Flushes }).of(Local),
}

// Breakers are the metrics of a breaker.
var Breakers = []Family[breaker.Stats]{
	gauge("levee_breaker_state", "0: closed; 1: half open; 2: open.", func(s *breaker.Stats) float64 { return float64(s.State) }).fold(math.Max),
	gauge("levee_breaker_running", "Loads that run.", func(s *breaker.Stats) float64 { return float64(s.Running) }),
	gauge("levee_breaker_stuck", "Of these, those whose caller has gone.", func(s *breaker.Stats) float64 { return float64(s.Stuck) }),
	gauge("levee_breaker_waiting", "Loads that wait for a place.", func(s *breaker.Stats) float64 { return float64(s.Waiting) }),
	gauge("levee_breaker_limit", "Loads that may run at a time; 0: no limit.", func(s *breaker.Stats) float64 { return float64(s.Limit) }),
	gauge("levee_breaker_service_seconds", "How long a load keeps its place, as the queue expects it.",
		func(s *breaker.Stats) float64 { return s.Service.Seconds() }).fold(math.Max),
	counters("levee_breaker_calls_total", "Loads that ended, by how.",
		Outcome[breaker.Stats]{"success", func(s *breaker.Stats) uint64 { return s.Successes }},
		Outcome[breaker.Stats]{"failure", func(s *breaker.Stats) uint64 { return s.Failures }},
		Outcome[breaker.Stats]{"excluded", func(s *breaker.Stats) uint64 { return s.Excluded }},
		Outcome[breaker.Stats]{"open", func(s *breaker.Stats) uint64 { return s.RefusedOpen }},
		Outcome[breaker.Stats]{"limited", func(s *breaker.Stats) uint64 { return s.RefusedLimited }},
		Outcome[breaker.Stats]{"left", func(s *breaker.Stats) uint64 { return s.Left }}),
	counter("levee_breaker_timeouts_total", "Of the failures, those by Timeout.", func(s *breaker.Stats) uint64 { return s.Timeouts }),
	counter("levee_breaker_shed_total", "Of the limited, those whose turn could not be expected in time.",
		func(s *breaker.Stats) uint64 { return s.Shed }),
	counter("levee_breaker_waits_total", "Loads that had to wait for their place, and got one.",
		func(s *breaker.Stats) uint64 { return s.Waited }),
	seconds("levee_breaker_wait_seconds_total", "How long these waited in all.",
		func(s *breaker.Stats) float64 { return s.WaitTime.Seconds() }),
}

// Filters are the metrics of a filter.
var Filters = []Family[bloom.Stats]{
	gauge("levee_filter_abstaining", "1 while the filter lets every key pass.", func(s *bloom.Stats) float64 { return is(s.Abstaining) }).fold(math.Max),
	gauge("levee_filter_needs_rebuild", "1 while nothing but a Rebuild makes the filter answer.",
		func(s *bloom.Stats) float64 { return is(s.NeedsRebuild) }).fold(math.Max),
	gauge("levee_filter_complete", "1 if the filter knows all keys.", func(s *bloom.Stats) float64 { return is(s.Complete) }).fold(math.Min),
	gauge("levee_filter_saturated", "1 if the filter holds so many keys that it says no to none.",
		func(s *bloom.Stats) float64 { return is(s.Saturated) }).fold(math.Max),
	gauge("levee_filter_rebuilding", "1 while this process rebuilds the filter.", func(s *bloom.Stats) float64 { return is(s.Rebuilding) }).fold(math.Max),
	gauge("levee_filter_capacity", "Keys that the filter is sized for.", func(s *bloom.Stats) float64 { return float64(s.Capacity) }),
	gauge("levee_filter_ids", "Keys in the filter, estimated.", func(s *bloom.Stats) float64 { return float64(s.Ids) }),
	gauge("levee_filter_fill", "Share of its positions that are set.", func(s *bloom.Stats) float64 { return s.Fill }).fold(math.Max),
	gauge("levee_filter_false_positive_rate", "Share of absent keys that pass, estimated.",
		func(s *bloom.Stats) float64 { return s.FalsePositiveRate }).fold(math.Max),
	gauge("levee_filter_bytes", "Size of the filter.", func(s *bloom.Stats) float64 { return float64(s.Bytes) }),
	gauge("levee_filter_lag_seconds", "How far the copy in this process may be behind Redis.",
		func(s *bloom.Stats) float64 { return s.Lag.Seconds() }).fold(math.Max),
	counter("levee_filter_adds_total", "Keys added.", func(s *bloom.Stats) uint64 { return s.Adds }),
	counter("levee_filter_removes_total", "Keys removed from a filter that counts.", func(s *bloom.Stats) uint64 { return s.Removes }),
	counter("levee_filter_rebuilds_total", "Rebuilds that succeeded.", func(s *bloom.Stats) uint64 { return s.Rebuilds }),
	counter("levee_filter_downloads_total", "Copies that this process has loaded from Redis.", func(s *bloom.Stats) uint64 { return s.Loads }),
}

// Lockers are the metrics of a Locker.
var Lockers = []Family[lock.Stats]{
	gauge("levee_lock_held", "Locks that this process holds.", func(s *lock.Stats) float64 { return float64(s.Held) }),
	gauge("levee_lock_waiting", "Calls that wait for a lock.", func(s *lock.Stats) float64 { return float64(s.Waiting) }),
	gauge("levee_lock_messages_live", "1 while messages of hand-offs arrive.", func(s *lock.Stats) float64 { return is(s.Live) }).fold(math.Min),
	counters("levee_lock_calls_total", "Calls that wanted a lock, by how they ended.",
		Outcome[lock.Stats]{"acquired", func(s *lock.Stats) uint64 { return s.Acquired }},
		Outcome[lock.Stats]{"refused", func(s *lock.Stats) uint64 { return s.Refused }},
		Outcome[lock.Stats]{"gave_up", func(s *lock.Stats) uint64 { return s.GaveUp }},
		Outcome[lock.Stats]{"failed", func(s *lock.Stats) uint64 { return s.Failed }}),
	counter("levee_lock_waits_total", "Calls that found the lock taken, and waited.", func(s *lock.Stats) uint64 { return s.Waits }),
	counter("levee_lock_hand_offs_total", "Waits that ended with the lock.", func(s *lock.Stats) uint64 { return s.HandOffs }),
	seconds("levee_lock_wait_seconds_total", "How long these calls waited in all.", func(s *lock.Stats) float64 { return s.WaitTime.Seconds() }),
	counters("levee_lock_renewals_total", "Renewals of leases.",
		Outcome[lock.Stats]{"confirmed", func(s *lock.Stats) uint64 { return s.Renewals }},
		Outcome[lock.Stats]{"failed", func(s *lock.Stats) uint64 { return s.RenewalErrors }}),
	counter("levee_lock_losses_total", "Leases that ended without having been given back.", func(s *lock.Stats) uint64 { return s.Losses }),
}

// counter makes the family of a counter.
func counter[S any](name, help string, value func(*S) uint64) Family[S] {
	return seconds(name, help, func(s *S) float64 { return float64(value(s)) })
}

// counters makes the family of a counter with several outcomes.
func counters[S any](name, help string, outcomes ...Outcome[S]) Family[S] {
	return Family[S]{Name: name, Help: help, Outcomes: outcomes}
}

// byAge makes the family of a counter whose outcomes are ages.
func byAge[S any](name, help string, ages ...Outcome[S]) Family[S] {
	return Family[S]{Name: name, Help: help, Outcomes: ages, ByAge: true}
}

// seconds makes the family of a counter of time.
func seconds[S any](name, help string, value func(*S) float64) Family[S] {
	return Family[S]{Name: name, Help: help, Value: value}
}

// gauge makes the family of a gauge.
func gauge[S any](name, help string, value func(*S) float64) Family[S] {
	return Family[S]{Name: name, Help: help, Gauge: true, Value: value}
}

func histogram[S any](name, help string, value func(*S) cache.Histogram) Family[S] {
	return Family[S]{Name: name, Help: help, Histogram: value}
}

// of makes the family absent for a cache without part p.
func (f Family[S]) of(p Part) Family[S] {
	f.Of = p
	return f
}

// fold sets how gauges of two things of one name are joined, if not by adding them.
func (f Family[S]) fold(fold func(a, b float64) float64) Family[S] {
	f.Fold = fold
	return f
}

// is returns the value of a gauge for yes or no: 1 or 0.
func is(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
