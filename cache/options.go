package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/guard"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/mutexrebuild"
)

// A Filter knows which keys cannot exist. MayContain gets the id of a key, see [Source.Key]. If
// it returns false, the loader is not called, so false is a guarantee. It is called concurrently,
// in every read beyond the local tier. A Filter may have more methods, all of which bloom.Filter
// has:
//
//   - MayContainMany(ctx, ids []string) []bool: GetMany calls it for up to 1,024 keys at a time.
//   - Add(ctx, ids ...string) error: Set, Write, Also and Announce call it before a key comes to exist.
//   - Ensure, with the same parameters: Set, Write and Also call it instead of Add, since they do not
//     know whether their keys are new.
//   - Counts() bool: if it returns true, Also calls Add, not Ensure.
//   - Rebuild(ctx, ids iter.Seq2[string, error]) error: RebuildFilter calls it.
//   - RebuildIfOlder(ctx, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error):
//     KeepFilter calls it.
//   - Invalidate(ctx) error: Follow calls it when it may have missed new keys. Until the next rebuild
//     the filter lets every key pass.
//
// Set and Announce call Add and Ensure with a context that does not end, so these must return by
// themselves.
type Filter interface {
	// MayContain returns false if id certainly does not exist.
	MayContain(ctx context.Context, id string) bool
}

// Off as the value of a field of [Options] whose comment allows a negative value switches that
// part off: StaleIfError: cache.Off.
const Off = -1

// Options configures a cache. The zero value of every field but Name works. A negative value is
// an error unless the field says what it means. A duration that is not 0 must be at least 1 ms.
type Options struct {
	// Name is the cache's name, the same in all processes. It must differ from the names of other
	// caches on the same Redis under the same Prefix, and of groups of package mutexrebuild there, which share its keys.
	// It may not be blank nor contain control characters or any of ":{}".
	Name string
	// Prefix is put in front of the names of the cache's keys and channel, followed by a colon: caches of
	// different prefixes are independent, such as those of two environments on one Redis. A shared
	// filter has a Prefix of its own. It is not shown in Stats, logs or hooks. "": none. At most 100
	// bytes, no braces and no control characters.
	Prefix string
	// Schema is part of the names of values in Redis. Raise it by one when the form of the values
	// changes: then old and new processes do not read each other's values. When a process
	// invalidates, writes or sets a key, it also drops the values of the schemas one below and
	// one above. So nobody reads a stale value during a rolling deployment or its rollback, as
	// long as no more than two successive schemas are in use.
	Schema int

	// TTL is how long a value is fresh, from its load. 0: 10 minutes. At least 1 ms.
	// For 30 s after its TTL (StaleWhileRevalidate) a value is served while it is
	// refreshed. After that, and up to an hour after its TTL (StaleIfError), it is served
	// only if its load fails, is refused or outlasts the caller's deadline.
	TTL time.Duration
	// NullTTL is how long the cache remembers that a key does not exist. 0: 30 s.
	NullTTL time.Duration
	// Jitter is the largest part by which a TTL is shortened at random, below 1.
	// 0: 0.1; negative: none.
	Jitter float64

	// StaleWhileRevalidate is how long after its TTL a value is still served at once,
	// while it is refreshed in the background. 0: 30 s; Off, or another negative value: not at all.
	StaleWhileRevalidate time.Duration
	// StaleIfError is how long after its TTL a value is still served when its load fails or is
	// refused, or when the caller's own deadline comes. While the source is slow, callers wait.
	// Redis keeps values for as long. 0: 1 hour; Off, or another negative value: not at all.
	StaleIfError time.Duration
	// EarlyRefresh scales how long before the end of its TTL a frequently read value is refreshed
	// in the background; the unit is the duration of its load. Only reads of Redis count: a copy
	// in memory is served to its end, so where loads take many seconds, set Local.TTL to as many.
	// 0: 1; negative: not at all.
	EarlyRefresh float64

	// Local configures the tier in this process. A service with one cache leaves it zero, one with
	// many names the same Budget in each, since the 64 MiB of MaxBytes are for each cache; MaxBytes
	// Off switches the tier off. Its TTL bounds how long an entry lives there, whatever the entry's
	// own TTL: 0 is 5 min, since messages keep entries right, and without Redis only the entry's
	// own TTL counts. A value that somebody deletes or replaces in Redis by hand is served for
	// that long by processes that have it in memory.
	Local localcache.Options
	// Filter rejects keys that cannot exist. Nil: no filter.
	Filter Filter
	// FilterBestEffort lets Set, Write, Also and Announce go on when the filter does not confirm that
	// it has learned a key. So inserts work while a shared filter's Redis is out of reach,
	// at a price: other processes, and this one when Redis answers again, may take the row for
	// absent until the filter's next Rebuild. Each case is logged at Error.
	FilterBestEffort bool
	// Breaker protects the source. Caches of one database should share a Breaker. A loader of one
	// of them may read the others with the context that it got: their loads run in its place and
	// do not count for MaxConcurrent. Its Timeout limits a load: 5 s, and a loader of slow queries
	// takes the time of the slowest. Nil: the cache makes its own, with the defaults.
	Breaker *breaker.Breaker
	// Rebuild configures leases and waiting. Most services leave it zero. A change that fewer than
	// WaitReplicas replicas acknowledge is ErrNotInvalidated. New refuses a LoadTimeout: in a cache
	// the breaker's Timeout limits a load.
	Rebuild mutexrebuild.Options
	// SoftTimeout is how long a Get waits for a load if there is a value past its TTL that could
	// be served (see StaleIfError): for callers that prefer an old value to a wait. The load goes
	// on. 0: Get waits as long as its context lets it.
	SoftTimeout time.Duration
	// Refreshes is how many refreshes run in the background at a time; values that share a call
	// of LoadMany count as one. 0: 16; negative: none.
	Refreshes int

	// RedisTimeout is how long one operation of Redis may take, whatever the client's own
	// options. Leave it 0, which is 250 ms, or take 1 s where a pause of the process or a round
	// trip may take longer, as on an overcommitted host or with Redis in another region: callers
	// wait as long until an outage of Redis is noticed. Below 150 ms a process with a CPU limit,
	// which pauses it for up to 100 ms at a time, takes its own pauses for pauses of Redis. A read
	// takes at most half of the time that its caller has left. An operation that has to wait for
	// its turn may wait for as long again.
	RedisTimeout time.Duration
	// ReplicaLag is how long after an invalidation no value of the key is stored in Redis,
	// because the loader reads from replicas that may lag this much. A value that is loaded in
	// that time may be served to other callers for up to a second, but not beyond the end of that
	// time. ReplicaLag needs Redis: without it New logs that writes are not protected. 0: the
	// loader always reads the latest write.
	ReplicaLag time.Duration

	// MaxKey is the longest id of a key, in bytes. 0: 512.
	MaxKey int
	// MaxValue is the largest encoded value that is stored, in bytes. Larger values are returned
	// and not stored. With a Codec that compresses, MaxValue bounds the compressed bytes only. 0:
	// 1 MiB.
	MaxValue int

	// Codec encodes values. If it is nil, []byte and string are stored as they are (a nil []byte
	// comes back as an empty one) and other types as JSON. New then refuses types that JSON does
	// not bring back completely, and names the field: one that is not exported or has the tag
	// json:"-", say. The cache decodes and compares the first 16 values, later one in 1,000, and
	// the next 1,000 after one that differs. A value that differs is returned and not stored
	// (Stats.Altered). [JSON] accepts such types and values. A codec that compresses should be a
	// [Sizer].
	Codec Codec
	// Seal encrypts what is stored in Redis, after Codec: values, and the fact that a key does
	// not exist. It binds them to their keys. Ids are not encrypted in the names of Redis keys;
	// Source.Key may hash them. MaxValue bounds the sealed bytes. A cache with Seal takes
	// unsealed bytes for a miss, and a cache without takes sealed bytes for a miss: raise Schema
	// by one when you add or remove it. Nil: nothing is sealed.
	Seal Sealer
	// IsNotFound recognizes further errors by which the loader says that a key does not exist, in
	// addition to ErrNotFound and sql.ErrNoRows. Nil: there are none. It is called concurrently.
	// An error that it does not recognize counts as a failure of the source.
	IsNotFound func(error) bool
	// Logger gets events that the cache survives and that its callers do not see, each kind at
	// most once a minute, with keys quoted and shortened and without values: Redis does not
	// answer, refuses commands, or answers again; messages do not arrive; invalidations are tried
	// again; loads fail while an old value is served; foreign bytes in Redis, values that cannot
	// be stored, panics of the codec. Nil: slog.Default().
	Logger *slog.Logger
	// Hooks are called for reads of Redis, rebuilds, waits, loads and writes.
	Hooks Hooks
}

func (o Options) withDefaults() (Options, error) {
	if err := keys.CheckCache(o.Name); err != nil {
		return o, fmt.Errorf("cache: %w", err)
	}
	switch {
	case o.Schema < 0 || int64(o.Schema) > 1<<31-1:
		return o, fmt.Errorf("cache: Schema must be from 0 to 2147483647, got %d", o.Schema)
	case !(o.Jitter < 1): // also NaN
		return o, fmt.Errorf("cache: Jitter must be below 1, got %v", o.Jitter)
	case o.StaleWhileRevalidate > 0 && o.StaleWhileRevalidate < time.Millisecond, o.StaleIfError > 0 && o.StaleIfError < time.Millisecond:
		return o, fmt.Errorf("cache: StaleWhileRevalidate and StaleIfError must be at least 1ms or negative, got %v and %v", o.StaleWhileRevalidate, o.StaleIfError)
	case math.IsNaN(o.EarlyRefresh) || math.IsInf(o.EarlyRefresh, 1):
		return o, fmt.Errorf("cache: EarlyRefresh must be a number, got %v", o.EarlyRefresh)
	}
	o.Jitter = max(cmp.Or(o.Jitter, 0.1), 0)
	o.StaleWhileRevalidate = cmp.Or(o.StaleWhileRevalidate, 30*time.Second)
	o.StaleIfError = cmp.Or(o.StaleIfError, time.Hour)
	o.EarlyRefresh = cmp.Or(o.EarlyRefresh, 1)
	err := errors.Join(
		fleet.OrDefault("TTL", &o.TTL, 10*time.Minute, time.Millisecond),
		fleet.OrDefault("NullTTL", &o.NullTTL, 30*time.Second, time.Millisecond),
		fleet.OrDefault("RedisTimeout", &o.RedisTimeout, 250*time.Millisecond, time.Millisecond),
		fleet.OrDefault("ReplicaLag", &o.ReplicaLag, 0, time.Millisecond),
		fleet.OrDefault("SoftTimeout", &o.SoftTimeout, 0, time.Millisecond),
		fleet.OrDefault("MaxKey", &o.MaxKey, 512, 1),
		fleet.OrDefault("MaxValue", &o.MaxValue, 1<<20, 1),
	)
	if err != nil {
		return o, fmt.Errorf("cache: %w", err)
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Refreshes = cmp.Or(o.Refreshes, 16)
	return o.withBreaker()
}

// windows returns how long values are refreshed early, stale and kept as a fallback.
func (o Options) windows() windows {
	return windows{stale: max(o.StaleWhileRevalidate, 0), fallback: max(o.StaleIfError, 0), early: max(o.EarlyRefresh, 0)}
}

// keyspace returns the options that concern the cache's keys in Redis.
func (o Options) keyspace() fleet.Keyspace {
	return fleet.Keyspace{
		Name: o.Name, Prefix: o.Prefix, Schema: o.Schema, RedisTimeout: o.RedisTimeout, ReplicaLag: o.ReplicaLag,
		MaxBytes: min(o.MaxValue, math.MaxInt-maxHeader) + maxHeader, Logger: o.Logger,
	}
}

// withBreaker makes the breaker, if none was given. A caller waits for the lease of another process
// for as long as a load may take.
func (o Options) withBreaker() (Options, error) {
	if o.Rebuild.LoadTimeout != 0 {
		return o, fmt.Errorf("cache: Rebuild.LoadTimeout is that of package mutexrebuild: in a cache Breaker.Timeout limits a load, set that to %v", o.Rebuild.LoadTimeout)
	}
	if o.Breaker == nil {
		own, err := breaker.New(breaker.Options{Name: o.Name, Logger: o.Logger})
		if err != nil {
			return o, fmt.Errorf("cache: %w", err)
		}
		o.Breaker = own
	}
	o.Rebuild.WaitBudget = cmp.Or(o.Rebuild.WaitBudget, o.guard().MaxDuration())
	rebuild, err := fleet.Options(o.Rebuild).WithDefaults()
	if err != nil {
		return o, fmt.Errorf("cache: Rebuild.%w", err)
	}
	o.Rebuild = mutexrebuild.Options(rebuild)
	return o, nil
}

// guard returns Breaker as the type with the methods that only the cache calls.
func (o Options) guard() *guard.Breaker { return (*guard.Breaker)(o.Breaker) }
