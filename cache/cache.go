package cache

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache/internal/follow"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/internal/doorkeeper"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/guard"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/rebuild"
)

// A Loader reads the value of key from the source. It reports that the key does not exist by an
// error that matches [ErrNotFound] or sql.ErrNoRows, or that [Options.IsNotFound] recognizes, or,
// if V is a pointer type, by a nil pointer without an error. It is called concurrently for
// different keys, on goroutines of the cache. If it panics or calls runtime.Goexit, the callers
// that wait for the key get an error.
//
// Its context ends after the load timeout and on Close, but not when a caller leaves.
//
// An error that matches [ErrNotFound] says that the key does not exist, even if the loader has
// got it from another cache. It does not say so if it also matches [ErrOverloaded],
// [ErrLoadTimeout] or the error of a context, as joined errors may.
//
// # The result depends on the key alone
//
// The context carries the values of the caller that happened to start the load, but the result
// goes to all callers, in all processes. So a loader must not read a user, a tenant, a locale or
// a transaction from its context: whatever the result depends on belongs in the key. The context
// is for values that do not change the result, such as a trace's span or a logger.
type Loader[K comparable, V any] func(ctx context.Context, key K) (V, error)

// A BatchLoader reads the values of several different keys. A key that is absent from the map, or
// has a nil pointer there, does not exist; a key that was not requested is ignored. An error
// applies to all keys, whatever the map holds. Otherwise the rules of [Loader] apply; the context
// carries the values of one caller's context.
type BatchLoader[K comparable, V any] func(ctx context.Context, keys []K) (map[K]V, error)

// A Source describes where values come from and what the cache has to know about them.
type Source[K comparable, V any] struct {
	// Load and LoadMany read from the source. One of them, or LoadEntry, is required. With
	// LoadMany, [Cache.GetMany] loads its missing keys in one call, and loads that wait at the
	// same moment share a call. If both are set, only GetMany calls LoadMany.
	Load     Loader[K, V]
	LoadMany BatchLoader[K, V]
	// LoadEntry is a Load that can tell the cache more about a value, see [Entry]. It replaces
	// Load: New returns an error if both are set. The rules of [Loader] apply. Without LoadMany,
	// GetMany calls it for 64 keys at a time, as it does Load.
	LoadEntry func(ctx context.Context, key K, e *Entry[V]) (V, error)
	// Key turns a key into its id, the text that is stored in Redis and in the filter, of at most
	// Options.MaxKey bytes. Different keys must give different ids. Nil works for these types:
	//
	//   - a type with an encoding.TextMarshaler: the id is its text
	//   - a string: the id is the string itself, without quotes
	//   - an integer of any size: the id is the decimal number, as strconv.FormatInt(k, 10) gives it, 42 or -7
	//   - a bool: true or false
	//   - a struct or an array of all these, nested ones too
	//
	// A named type has the id of its underlying type.
	//
	// The id of a struct or an array joins the ids of its fields or elements in their order,
	// unexported fields too, with slashes: struct{Tenant string; ID int64} gives acme/42. A slash
	// or a backslash in a string or in the text of a TextMarshaler is escaped by a backslash. An
	// array of bytes is written in hexadecimal. Adding, removing or moving a field changes the
	// ids; renaming one does not. A MarshalText has to give different texts for different keys:
	// time.Time's leaves out the name of the location and the monotonic clock. New refuses types
	// that contain a float, a pointer, an interface or a channel, and structs whose MarshalText
	// comes from an embedded field and leaves out the other fields.
	Key func(K) string
	// TTL returns how long a value is fresh. A nil func, or a result of 0 or less, means
	// Options.TTL. The TTL is not a hard end: the stale windows of Options follow it. So a token
	// or a signed URL that expires by itself needs a TTL that is shorter by the longer of these
	// windows, or a cache without them.
	TTL func(K, V) time.Duration
	// Tags returns the groups that a value belongs to, such as its tenant and its brand:
	// [Cache.ClearTags] ends all values of a group at once. Nil means that values have no tags. A
	// value has 16 tags at most, each of which takes 4 bytes of it; a value with more is not
	// stored in Redis. A key that does not exist has no tags. Processes with and without Tags
	// store values in different forms: raise Options.Schema when you add or change Tags.
	Tags func(K, V) []string
	// Clone copies a value for a caller that may change it. Nil means that callers share values
	// with pointers, slices or maps in them, and must not change what these refer to.
	Clone func(V) V
}

// A Cache serves the values of a source. It may be used concurrently. Make it with [New] or
// [NewFrom], and Close it, because it owns goroutines.
type Cache[K comparable, V any] struct {
	telemetry
	o Options

	// The parts of a cache, each with a file of its own. A part knows the parts above it.
	fleet   *fleet.Group    // leases, values and messages in Redis
	flights *flight.Group   // callers of this process who share a load
	breaker *guard.Breaker  // of Options.Breaker
	naming  naming[K]       // keys and their ids
	values  values[V]       // what an entry is worth
	local   localTier[K, V] // entries in this process
	remote  remote          // reads of Redis
	filter  filter          // Options.Filter
	loader  loader[K, V]    // calls of the Source
	writer  writer          // changes of keys
	engine  *rebuild.Engine // from a miss to an answer, see owner

	releaseName func()
	refreshing  atomic.Int64 // running refreshes
	closing     context.Context
	close       context.CancelFunc
	fed         follow.Cache                     // what Follow needs, and its counters
	sample      atomic.Pointer[inside.Sample[K]] // of a running audit
}

// New makes a cache of the values that load reads. See [NewFrom].
func New[K comparable, V any](rdb redis.UniversalClient, load Loader[K, V], o Options) (*Cache[K, V], error) {
	return NewFrom(rdb, Source[K, V]{Load: load}, o)
}

// NewFrom makes a cache of src. Caches of the same name that use the same Redis are one cache,
// so their values must have one type: two caches that store their values in different forms
// cannot be open on one client. An untyped nil rdb makes a cache that works in this process only;
// a nil pointer of a client's type is an error. NewFrom uses the client as it is; the caller
// closes it, after the cache. NewFrom does not wait for Redis. Its error names the field that
// it cannot use.
func NewFrom[K comparable, V any](rdb redis.UniversalClient, src Source[K, V], o Options) (*Cache[K, V], error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	switch {
	case src.Load == nil && src.LoadMany == nil && src.LoadEntry == nil:
		return nil, errors.New("cache: Source.Load, Source.LoadMany and Source.LoadEntry are all nil")
	case src.Load != nil && src.LoadEntry != nil:
		return nil, errors.New("cache: Source.Load and Source.LoadEntry are both set: one of them loads")
	}
	if o.Local.TTL == 0 {
		if o.Local.TTL = localLife; rdb == nil {
			o.Local.TTL = math.MaxInt64 // as long as an entry's own TTL: no invalidation can be missed
		}
	}
	c := &Cache[K, V]{
		telemetry: telemetry{name: o.Name, hooks: o.Hooks, log: logonce.New(o.Logger.With("cache", o.Name), "levee: ")},
		o:         o, breaker: o.guard(), flights: flight.NewGroup(o.Rebuild.ErrorHold),
	}
	c.flights.Nested = c.breaker.Inside
	c.values = values[V]{telemetry: &c.telemetry, windows: o.windows(), clone: src.Clone, absent: &entry[V]{life: life{null: true}}}
	if c.naming, err = newNaming(src.Key, o.MaxKey); err != nil {
		return nil, err
	}
	if c.values.format, err = newFormat[V](o, c.log); err != nil {
		return nil, err
	}
	if c.releaseName, err = claimName(rdb, o, c.values.format); err != nil {
		return nil, err
	}
	if c.local, err = newLocalTier[K](o, src.LoadEntry != nil, &c.telemetry, &c.values); err != nil {
		c.releaseName()
		return nil, err
	}
	c.local.Trust(rdb == nil) // with Redis not before invalidations arrive
	if c.fleet, err = fleet.New(rdb, o.keyspace(), fleet.Options(o.Rebuild), c.messages()); err != nil {
		c.local.Close()
		c.releaseName()
		return nil, named(err)
	}
	c.closing, c.close = context.WithCancel(context.Background())
	c.assemble(src)
	c.fed.Name, c.fed.Prefix, c.fed.Redis, c.fed.Logger, c.fed.Closing = o.Name, o.Prefix, rdb, o.Logger, c.closing
	c.fed.Clear = func(ctx context.Context) error { return c.writer.onMaster(c.Clear(ctx)) }
	c.fed.Invalidate = func(ctx context.Context, ids []string) error { return c.writer.onMaster(c.writer.invalidate(ctx, ids)) }
	c.fed.ClearTags = func(ctx context.Context, tags []string) error { return c.writer.onMaster(c.ClearTags(ctx, tags...)) }
	c.fed.Ensure, c.fed.Distrust, c.fed.Deaf = c.filter.tell, c.filter.distrust, c.filter.deaf()
	return c, nil
}

// assemble makes the parts that need the fleet.
func (c *Cache[K, V]) assemble(src Source[K, V]) {
	c.values.fleet, c.local.tagClears = c.fleet, c.fleet.TagClears()
	c.remote = remote{telemetry: &c.telemetry, fleet: c.fleet, timeout: c.o.RedisTimeout}
	c.filter = filter{Filter: c.o.Filter, fed: &c.fed, telemetry: &c.telemetry, bestEffort: c.o.FilterBestEffort, tasks: &c.loader.running, closing: c.closing}
	c.loader = loader[K, V]{
		Source: src, telemetry: &c.telemetry, o: &c.o, values: &c.values, filter: &c.filter, fleet: c.fleet, flights: c.flights,
		doorkeeper: doorkeeper.New(2 * c.o.NullTTL), // a null in the local tier lives that long too
	}
	c.writer = writer{
		telemetry: &c.telemetry, fleet: c.fleet, flights: c.flights, local: c.local.Cache, filter: &c.filter,
		fallback: c.values.fallback, closing: c.closing,
	}
	c.engine = c.newEngine()
	c.loader.engine = c.engine
}

// messages returns callbacks that apply the invalidations of other processes to the local tier.
func (c *Cache[K, V]) messages() fleet.Messages {
	return fleet.Messages{
		Invalidated: func(id string) { c.local.Delete(id); c.flights.Forget(id) },
		Missed:      c.local.Flush,
		Cleared:     func() { c.local.Flush(); c.flights.ForgetAll() },
		Live:        c.local.Trust,
	}
}

// Close ends the cache. Waiting callers get ErrClosed, and so do all later calls but Stats and
// the functions of package cachedebug. Close cancels the contexts of running loads and waits
// until the loads end, but no longer than the breaker's QueueTimeout and Timeout together (without
// a Timeout 5 s). Invalidations that Redis has not
// confirmed are tried once more, for a second or two. Close does not close the client,
// Options.Breaker or Options.Filter. It may be called more than once and always returns nil.
func (c *Cache[K, V]) Close() error {
	c.close()
	<-c.flights.Close()
	c.loader.running.CloseWithin(cmp.Or(c.breaker.MaxDuration(), 5*time.Second))
	<-c.writer.reopening.work.Close()
	c.fleet.Close()
	c.writer.gone.Store(true)
	c.writer.reopening.passOn()
	c.local.Close()
	c.releaseName()
	return nil
}

// Check tests, at the start of a service, whether the cache can work with its Redis: whether
// Redis answers as a master of version 6.2 or later, accepts the client's password and database,
// lets the client run every command of the cache and receive other processes' messages, has the
// replicas for Options.Rebuild.WaitReplicas, and has an eviction policy that suits a cache. Check
// tries the commands on a key of its own, which it deletes afterwards; in a cluster it tries them
// on one node. Without the right to INFO it cannot see the eviction policy.
//
// The error names the cache and the cause. It matches ErrUnavailable if the cache cannot use
// Redis: Get then calls the loader, so let no readiness probe depend on Check. Any other error
// says what weakens a guarantee. Check takes some milliseconds; if Redis does not answer, some
// seconds, or until ctx ends. Without Redis it returns nil, after Close ErrClosed.
func (c *Cache[K, V]) Check(ctx context.Context) error {
	if c.closed() {
		return ErrClosed
	}
	return named(c.fleet.Check(ctx))
}
