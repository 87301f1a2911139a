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

// A Filter knows which keys cannot exist. MayContain gets a key as [Source.Key]
// gives it. Its "no" is a promise: the loader is not called. It is called concurrently,
// in the path of every read beyond the local tier. It may have more methods, all of which
// bloom.Filter has:
//
//   - MayContainMany(ctx, ids []string) []bool: GetMany calls it for a page.
//   - Add(ctx, ids ...string) error: Set, Write, Also and Announce call it before a key comes to
//     exist.
//   - Ensure, of that form too: Set, Write and Also call it in place of Add, since they do not
//     know whether their keys are new.
//   - Counts() bool: if it is true, Also calls Add all the same.
//   - Rebuild(ctx, ids iter.Seq2[string, error]) error: RebuildFilter calls it.
//   - RebuildIfOlder(ctx, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error):
//     KeepFilter calls it.
//
// From Set and Announce, Add and Ensure get a context that does not end, so they have to return
// by themselves.
type Filter interface {
	// MayContain is false if id surely does not exist.
	MayContain(ctx context.Context, id string) bool
}

// Off switches a part off whose field of [Options] says that a negative value does:
// StaleIfError: cache.Off.
const Off = -1

// Options adjusts a cache. The zero value of every field but Name works. A
// negative value is an error where the field does not say what it means. A duration that
// is not 0 has to be at least 1 ms.
type Options struct {
	// Name is the cache's name, the same in all processes and different from
	// other caches' on the same Redis, and from the groups of package mutexrebuild, which
	// share its keys. It may not be blank nor hold control characters or any of ":{}".
	Name string
	// Schema is part of the names of values in Redis. Raise it by one when the form of
	// the values changes, and old and new processes do not read each other's. What a
	// process invalidates, writes or sets, it drops for the schemas one below and one
	// above as well: so nobody reads a stale value during a rolling deployment or its
	// rollback, as long as no more than two schemas that follow each other are in use.
	Schema int

	// TTL is how long a value is fresh, from its load. 0: 10 minutes. At least 1 ms.
	// After its TTL a value is served for StaleWhileRevalidate (30 s) while it is
	// refreshed, and then, up to StaleIfError (1 h) after the TTL, only if its load fails
	// or is refused, or when the caller's own deadline comes.
	TTL time.Duration
	// NullTTL is the TTL of the knowledge that a key does not exist. 0: 30 s.
	NullTTL time.Duration
	// Jitter is the largest part by which a TTL is shortened at random, below 1.
	// 0: 0.1; negative: none.
	Jitter float64

	// StaleWhileRevalidate is how long after its TTL a value is still served at once,
	// while it is refreshed in the background. 0: 30 s; negative: not at all.
	StaleWhileRevalidate time.Duration
	// StaleIfError is how long after its TTL a value is still served when its load fails
	// or is refused, or when the caller's own deadline comes; a slow source is waited
	// for. Redis keeps values as long. 0: 1 hour; negative: not at all.
	StaleIfError time.Duration
	// EarlyRefresh scales how long before the end of its TTL a value that is read
	// often is refreshed in the background, in units of what its load takes. 0: 1;
	// negative: not at all.
	EarlyRefresh float64

	// Local adjusts the tier in this process; a negative MaxBytes switches it
	// off. Its 64 MiB are those of this cache alone; with a Budget several caches share
	// them. Its TTL bounds how long an entry lives there, whatever its own TTL; without
	// Redis, 0 means that an entry lives there as long as its own TTL says.
	Local localcache.Options
	// Filter rejects keys that cannot exist. Nil: none.
	Filter Filter
	// FilterBestEffort lets Set, Write, Also and Announce go on when the filter does not confirm
	// that it has learned of a key. So inserts run while a shared filter's Redis is out of
	// reach, at a price: other processes, and this one when Redis answers again, may take
	// the row for absent until the filter's next Rebuild. It is logged at Error.
	FilterBestEffort bool
	// Breaker protects the source. Caches of one database should share one; a loader
	// of one of them may read the others, with the context that it got: their loads run in
	// its place, beside MaxConcurrent. Nil: one of the cache's own, with the defaults of its package and
	// Rebuild.LoadTimeout as its Timeout.
	Breaker *breaker.Breaker
	// Rebuild adjusts leases and waiting. Without a Breaker, Rebuild.LoadTimeout limits a
	// load; 0: 5 s. With a Breaker that has a Timeout, leave it 0: that Timeout limits a load.
	// A longer one then bounds the load and its wait for the breaker's queue together, and New
	// refuses one that is shorter than both. What is not confirmed by Rebuild.WaitReplicas is
	// ErrNotInvalidated.
	Rebuild mutexrebuild.Options
	// SoftTimeout is how long a Get waits for a load when there is a value past its TTL
	// that could be served (see StaleIfError): for callers that prefer an old value to a
	// wait. The load goes on. 0: as long as its context lets it.
	SoftTimeout time.Duration
	// Refreshes is how many refreshes run in the background at a time; those of values that
	// share a call of LoadMany are one. 0: 16; negative: none.
	Refreshes int

	// RedisTimeout is how long one operation of Redis may take, whatever the
	// client's own options are. A read takes at most half of the time that its caller has left. One that has to wait for its turn, behind others, does so
	// for at most as long again. Below 150 ms a process with a CPU limit, which is paused
	// for up to 100 ms at a time, takes its own pauses for those of Redis. 0: 250 ms.
	RedisTimeout time.Duration
	// ReplicaLag is how long after an invalidation nothing is published, because
	// the loader reads from replicas that may lag this much. A value loaded meanwhile
	// may be served to others for up to a second, but not beyond it. It needs
	// Redis: New logs that it protects no write without. 0: the loader reads what was written
	// last.
	ReplicaLag time.Duration

	// MaxKey is the longest key in bytes. 0: 512.
	MaxKey int
	// MaxValue is the largest value in bytes, encoded, that is stored. Larger
	// ones are returned and not stored. With a Codec that compresses it bounds the
	// compressed bytes alone. 0: 1 MiB.
	MaxValue int

	// Codec encodes values. Nil: []byte and string as they are, so that a nil
	// []byte comes back as an empty one, others as JSON. Then New refuses types that JSON does not bring back whole, and names the field:
	// one that is not exported or has the tag json:"-", say. The first 16 values, one in 1,000 later, and
	// the next 1,000 after one that differs are decoded and compared. One that differs is
	// returned and not stored (Stats.Altered). [JSON] takes such types and values. One that compresses should be a [Sizer].
	Codec Codec
	// Seal encrypts what is stored in Redis, after Codec: values, and that keys do not exist. It
	// binds them to their keys. Ids stay in the clear, in the names of Redis keys; Source.Key may
	// hash them. MaxValue bounds the sealed bytes. A cache with Seal takes bytes that are not sealed for
	// a miss, and one without takes sealed ones for a miss: raise Schema by one with
	// it. Nil: nothing is sealed.
	Seal Sealer
	// IsNotFound recognizes the loader's error for a key that does not exist,
	// beside ErrNotFound and sql.ErrNoRows. Nil: there is no other. It is called
	// concurrently. An error that it does not recognize counts as a failure of the
	// source.
	IsNotFound func(error) bool
	// Logger gets what the cache survives and its callers do not learn, each kind
	// of event once a minute at the most, with keys quoted and cut and without
	// values: a Redis that does not answer, refuses commands, or answers again;
	// messages that do not arrive; invalidations that are tried again; loads that
	// fail while an old value is served; foreign bytes, values that cannot be stored,
	// panics of the codec.
	// Nil: slog.Default().
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

// windows are what the options say of the life of values.
func (o Options) windows() windows {
	return windows{stale: max(o.StaleWhileRevalidate, 0), fallback: max(o.StaleIfError, 0), early: max(o.EarlyRefresh, 0)}
}

// keyspace is what the options say of the cache's keys in Redis.
func (o Options) keyspace() fleet.Keyspace {
	return fleet.Keyspace{
		Name: o.Name, Schema: o.Schema, RedisTimeout: o.RedisTimeout, ReplicaLag: o.ReplicaLag,
		MaxBytes: min(o.MaxValue, math.MaxInt-maxHeader) + maxHeader, Logger: o.Logger,
	}
}

// withBreaker makes the breaker, if none was given, and settles who limits the time of a
// load: the breaker if it has a Timeout. Then Rebuild.LoadTimeout is 0, unless it was
// set to bound the wait for the breaker's queue too.
func (o Options) withBreaker() (Options, error) {
	limit := o.Rebuild.LoadTimeout
	if limit < 0 {
		return o, fmt.Errorf("cache: Rebuild.LoadTimeout must not be negative, got %v", limit)
	}
	if o.Breaker == nil {
		own, err := breaker.New(breaker.Options{Name: o.Name, Timeout: limit, Logger: o.Logger})
		if err != nil {
			return o, fmt.Errorf("cache: Rebuild.LoadTimeout: %w", err)
		}
		o.Breaker, limit = own, 0
	}
	longest := o.guard().MaxDuration()
	if limit != 0 && limit <= longest {
		return o, fmt.Errorf("cache: Rebuild.LoadTimeout must be longer than the breaker's Timeout and QueueTimeout together, %v, got %v", longest, limit)
	}
	if o.Rebuild.WaitBudget == 0 {
		o.Rebuild.WaitBudget = max(limit, longest)
	}
	rebuild, err := fleet.Options(o.Rebuild).WithDefaults()
	if err != nil {
		return o, fmt.Errorf("cache: Rebuild.%w", err)
	}
	if limit == 0 && longest > 0 {
		rebuild.LoadTimeout = 0
	}
	o.Rebuild = mutexrebuild.Options(rebuild)
	return o, nil
}

// loadTimeout is the longest that a load may take.
func (o Options) loadTimeout() time.Duration {
	return max(o.Rebuild.LoadTimeout, o.guard().MaxDuration())
}

// guard is Breaker with the calls that only the cache makes.
func (o Options) guard() *guard.Breaker { return (*guard.Breaker)(o.Breaker) }
