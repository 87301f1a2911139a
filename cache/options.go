package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/mutexrebuild"
)

// A Filter knows which keys cannot exist. MayContain gets a key as [Source.Key]
// gives it. Its "no" is a promise: the source is not asked. It is called concurrently,
// in the path of every read beyond the local tier. If it has a method
// Add(ctx, ids ...string) error, as bloom.Filter does, Set, Write and Announce call
// it before a key comes to exist.
type Filter interface {
	MayContain(ctx context.Context, id string) bool
}

// Options adjusts a cache. The zero value of every field but Name works. A
// negative value is an error where the field does not say what it means.
type Options struct {
	// Name is the cache's name, the same in all processes and different from
	// other caches' on the same Redis. It may not be empty nor hold any of ":{}".
	Name string
	// Schema is part of the keys. Raise it when the form of the values changes,
	// and old and new processes do not read each other's.
	Schema int

	// TTL is how long a value may live, from its load. 0: 10 minutes. At least
	// 1 ms.
	TTL time.Duration
	// NullTTL is the TTL of the knowledge that a key does not exist. 0: 30 s.
	NullTTL time.Duration
	// Jitter is the largest part by which a TTL is shortened at random, below 1.
	// 0: 0.1; negative: none.
	Jitter float64

	// StaleWhileRevalidate is how long after its TTL a value still answers at once,
	// while it is refreshed in the background. 0: 30 s; negative: not at all.
	StaleWhileRevalidate time.Duration
	// StaleIfError is how long after its TTL a value still answers when the source
	// does not: when its load fails, is shed, or takes longer than the caller can
	// wait. Redis keeps values as long. 0: 1 hour; negative: not at all.
	StaleIfError time.Duration
	// EarlyRefresh scales how long before the end of its TTL a value that is read
	// often is refreshed in the background, in units of what its load takes. 0: 1;
	// negative: not at all.
	EarlyRefresh float64

	// Local adjusts the tier in this process; a negative MaxBytes switches it
	// off. Its TTL bounds how long an entry lives there, whatever its own TTL.
	Local localcache.Options
	// Filter answers for keys that cannot exist. Nil: none.
	Filter Filter
	// Breaker protects the source. Caches of one database should share one. Nil:
	// one of the cache's own, with the defaults of its package and
	// Rebuild.LoadTimeout as its Timeout.
	Breaker *breaker.Breaker
	// Rebuild adjusts leases and waiting. Its Schema, ReplicaLag, RedisTimeout,
	// MaxBytes and Logger follow from this struct, and must not be set there. Its
	// LoadTimeout bounds a whole rebuild, the breaker's queue included; with a Breaker
	// given, 0 means that breaker's MaxDuration, and less is an error.
	Rebuild mutexrebuild.Options

	// RedisTimeout is how long one operation of Redis may take, whatever the
	// client's own options are. 0: 100 ms.
	RedisTimeout time.Duration
	// ReplicaLag is how long after an invalidation nothing is published, because
	// the loader reads from replicas that may lag this much. 0: the loader reads
	// what was written last.
	ReplicaLag time.Duration

	// MaxKey is the longest key in bytes. 0: 512.
	MaxKey int
	// MaxValue is the largest value in bytes, encoded, that is stored. Larger
	// ones are returned and not stored. 0: 1 MiB.
	MaxValue int

	// Codec encodes values. Nil: []byte and string as they are, so that a nil
	// []byte comes back as an empty one, others as JSON. What JSON does not carry,
	// such as unexported fields, is there for those whose Get has loaded the value and
	// missing for those who get it from Redis.
	Codec Codec
	// IsNotFound recognizes the loader's error for a key that does not exist,
	// beside ErrNotFound. Nil: there is no other. It is called concurrently.
	IsNotFound func(error) bool
	// Logger gets what the cache survives and its callers are not told of, each kind
	// of event once a minute at the most, with keys quoted and cut and without
	// values: a Redis that does not answer, refuses commands, or answers again;
	// messages that do not arrive; invalidations that are tried again; loads that
	// fail while an old value answers; foreign bytes, values that cannot be stored,
	// panics of the codec.
	// Nil: slog.Default().
	Logger *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Name == "":
		return o, errors.New("cache: Name is empty")
	case strings.ContainsAny(o.Name, ":{}"):
		return o, fmt.Errorf("cache: Name must not hold any of \":{}\", got %q", o.Name)
	case o.Schema < 0 || int64(o.Schema) > 1<<31-1:
		return o, fmt.Errorf("cache: Schema must be from 0 to 2147483647, got %d", o.Schema)
	case !(o.Jitter < 1): // also NaN
		return o, fmt.Errorf("cache: Jitter must be below 1, got %v", o.Jitter)
	case math.IsNaN(o.EarlyRefresh) || math.IsInf(o.EarlyRefresh, 1):
		return o, fmt.Errorf("cache: EarlyRefresh must be a number, got %v", o.EarlyRefresh)
	}
	if o.Jitter == 0 {
		o.Jitter = 0.1
	}
	o.Jitter = max(o.Jitter, 0)
	if o.StaleWhileRevalidate == 0 {
		o.StaleWhileRevalidate = 30 * time.Second
	}
	if o.StaleIfError == 0 {
		o.StaleIfError = time.Hour
	}
	if o.EarlyRefresh == 0 {
		o.EarlyRefresh = 1
	}
	err := errors.Join(
		orDefault("TTL", &o.TTL, 10*time.Minute, time.Millisecond),
		orDefault("NullTTL", &o.NullTTL, 30*time.Second, time.Millisecond),
		orDefault("RedisTimeout", &o.RedisTimeout, 100*time.Millisecond, time.Millisecond),
		orDefault("ReplicaLag", &o.ReplicaLag, 0, time.Millisecond),
		orDefault("MaxKey", &o.MaxKey, 512, 1),
		orDefault("MaxValue", &o.MaxValue, 1<<20, 1),
	)
	if err != nil {
		return o, err
	}
	if o.Local.TTL == 0 {
		o.Local.TTL = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Rebuild.Schema != 0 || o.Rebuild.ReplicaLag != 0 || o.Rebuild.RedisTimeout != 0 || o.Rebuild.MaxBytes != 0 || o.Rebuild.Logger != nil {
		return o, errors.New("cache: Rebuild.Schema, Rebuild.ReplicaLag, Rebuild.RedisTimeout, Rebuild.MaxBytes and Rebuild.Logger are set by Schema, ReplicaLag, RedisTimeout, MaxValue and Logger")
	}
	o.Rebuild.Schema, o.Rebuild.ReplicaLag, o.Rebuild.RedisTimeout = o.Schema, o.ReplicaLag, o.RedisTimeout
	o.Rebuild.MaxBytes = min(o.MaxValue, math.MaxInt-headerSize) + headerSize
	o.Rebuild.Logger = o.Logger
	return o.withBreaker()
}

// windows are what the options say of the life of values.
func (o Options) windows() windows {
	return windows{stale: max(o.StaleWhileRevalidate, 0), spare: max(o.StaleIfError, 0), early: max(o.EarlyRefresh, 0)}
}

// slack is what a rebuild gets beyond the breaker's own bounds. The breaker has
// to see a load's timeout first: the end of the context that it is called with
// would count as a caller who left.
const slack = 100 * time.Millisecond

// withBreaker brings the load timeout and the breaker together.
func (o Options) withBreaker() (Options, error) {
	if o.Breaker == nil {
		timeout := o.Rebuild.LoadTimeout
		if timeout < 0 {
			return o, fmt.Errorf("cache: Rebuild.LoadTimeout must not be negative, got %v", timeout)
		}
		own, err := breaker.New(breaker.Options{Name: o.Name, Timeout: timeout})
		if err != nil {
			return o, fmt.Errorf("cache: Rebuild.LoadTimeout: %w", err)
		}
		o.Breaker = own
		o.Rebuild.LoadTimeout = own.MaxDuration() + slack
		return o, nil
	}
	longest := o.Breaker.MaxDuration()
	switch {
	case o.Rebuild.LoadTimeout == 0 && longest > 0:
		o.Rebuild.LoadTimeout = longest + slack
	case o.Rebuild.LoadTimeout != 0 && longest > 0 && o.Rebuild.LoadTimeout <= longest:
		return o, fmt.Errorf("cache: Rebuild.LoadTimeout must be longer than the breaker's Timeout and QueueTimeout together, %v, got %v", longest, o.Rebuild.LoadTimeout)
	}
	return o, nil
}

// orDefault sets a field that is 0 to its default, and reports one below least.
func orDefault[T int | time.Duration](name string, field *T, zero, least T) error {
	if *field == 0 {
		*field = zero
		return nil
	}
	if *field < least {
		return fmt.Errorf("cache: %s must be at least %v, got %v", name, least, *field)
	}
	return nil
}
