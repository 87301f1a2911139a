package cache

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/levee-go/levee/internal/tier"
	"github.com/levee-go/levee/internal/wait"
)

// A Loader reads the value of key from the source. It says that there is none by
// an error that matches [ErrNotFound] or sql.ErrNoRows, or that [Options.IsNotFound]
// recognizes, or by a nil pointer without an error, if V is a pointer's type. It is called
// concurrently for different keys, on goroutines of the cache. A panic or Goexit of it is
// an error of the callers that wait for the key.
//
// Its context ends after the load timeout, and on Close, and not when a caller leaves.
//
// An error that matches [ErrNotFound], also that of another cache which the loader has read, says
// that the key does not exist. It does not if it also matches [ErrOverloaded], [ErrLoadTimeout] or
// the error of a context, as errors that were joined may.
//
// # The result depends on the key alone
//
// The context carries the values of the caller that happened to start the load. The
// result goes to all callers, in all processes. So a loader must not read a user, a tenant,
// a locale or a transaction from its context. What the result depends on belongs into the
// key. Values that do not change the result, such as a trace's span or a logger, are what
// the context is for.
type Loader[K comparable, V any] func(ctx context.Context, key K) (V, error)

// A BatchLoader reads the values of several different keys. A key that is absent
// from the map, or has a nil pointer there, does not exist, and one that was not requested
// is ignored. An error is that of all keys, whatever the map holds. The rest is as for
// [Loader]: its context carries the values of one caller's context.
type BatchLoader[K comparable, V any] func(ctx context.Context, keys []K) (map[K]V, error)

// A Source is where values come from, and what the cache has to know of them.
type Source[K comparable, V any] struct {
	// Load and LoadMany read from the source. One of them is needed, or LoadEntry. With
	// LoadMany, [Cache.GetMany] loads its missing keys in one call, and loads that wait at one
	// moment share a call. Given both, LoadMany is for GetMany alone.
	Load     Loader[K, V]
	LoadMany BatchLoader[K, V]
	// LoadEntry is a Load that may say more of a value, see [Entry]. It takes the place of
	// Load; both are an error of New. What is said of Loader holds for it. Alone it loads for
	// GetMany too, as Load does, 64 keys at a time.
	LoadEntry func(ctx context.Context, key K, e *Entry[V]) (V, error)
	// Key turns a key into its id, the text that is stored in Redis and in the filter, of at
	// most Options.MaxKey bytes. Different keys must give different ids. Nil works for
	// types with an encoding.TextMarshaler, whose id is that text; for strings, whose id is
	// the string itself, without quotes; for integers of all sizes, whose id
	// is the number in decimal as strconv.FormatInt(k, 10) gives it: 42 and -7; for
	// bools, true or false; and for structs and arrays of all these, nested ones too. The id of
	// a named type is that of the type below it.
	//
	// The id of a struct or an array is those of its fields or elements in their order, also of
	// unexported fields, with a slash between each two: struct{Tenant string; ID int64} gives
	// acme/42. A slash or a backslash in a string or in the text of a TextMarshaler has a backslash
	// before it there. An array of bytes is hexadecimal. A field that is added, removed or moved
	// makes other ids; one that is renamed does not. A MarshalText has to give different
	// texts for different keys: that of time.Time has neither the name of the location
	// nor what is left of the monotonic clock. New refuses types with a float, a
	// pointer, an interface or a channel in them, and structs whose MarshalText is that of
	// an embedded field and leaves out the others.
	Key func(K) string
	// TTL is how long a value is fresh. Nil, 0 or less means Options.TTL. It is not a hard
	// end: the stale windows of Options follow it, so a token or a signed URL that ends by
	// itself needs a TTL that is shorter by the longer of them, or a cache without them.
	TTL func(K, V) time.Duration
	// Tags are the groups that a value belongs to, such as its tenant and its brand:
	// [Cache.ClearTags] ends all values of a group at once. Nil means none. A value has 16 tags
	// at most, each of which takes 4 bytes of it; one that has more is not stored in Redis. A key that does
	// not exist has no tags. Processes with and without Tags store values that differ in this:
	// raise Options.Schema when Tags comes in or changes.
	Tags func(K, V) []string
	// Clone copies a value for a caller who may change it. Nil means that values
	// with pointers, slices or maps in them are shared between callers, who must not
	// change what these lead to.
	Clone func(V) V
}

// A Cache serves the values of a source. It may be used concurrently. Make it with [New] or
// [NewSource], and Close it: it owns goroutines.
type Cache[K comparable, V any] struct {
	o       Options
	source  Source[K, V]
	id      func(K) (string, error)
	format  format[V]
	windows windows

	local        *tier.Cache[K, entry[V]]
	unstoredOnly bool           // local has nothing but what is not to be stored, see localOptions
	tagClears    *atomic.Uint64 // see Group.TagClears: each hit reads it

	flights *flight.Group[found[V]]
	fleet   *fleet.Group   // leases, values and messages in Redis
	breaker *guard.Breaker // of Options.Breaker

	misses, unread, refreshes gatherer[K, V] // jobs on their way to calls of LoadMany

	absent        *entry[V] // of a key that does not exist, where its times are unknown
	doorkeeper    *doorkeeper.Doorkeeper
	releaseName   func()
	refreshing    atomic.Int64                  // refreshes that run
	filterRebuild atomic.Pointer[FilterRebuild] // the last
	doubting      atomic.Bool                   // an id is looked at that the filter denies, see compareFilter
	closing       context.Context
	close         context.CancelFunc
	loading       wait.Tasks                       // loads, also those that are left behind
	reopening     reopening                        // of Writes of several caches
	fed           follow.Cache                     // what Follow needs and has done
	sample        atomic.Pointer[inside.Sample[K]] // of an audit that runs
	log           *logonce.Log
	counts        counters
	times         times
}

// New makes a cache of what load reads. See [NewSource].
func New[K comparable, V any](rdb redis.UniversalClient, load Loader[K, V], o Options) (*Cache[K, V], error) {
	return NewSource(rdb, Source[K, V]{Load: load}, o)
}

// NewSource makes a cache of src. Caches of the same name that use the same
// Redis are one cache, and their values are of one type: two whose values are stored in
// different forms cannot be open on one client. An untyped nil rdb makes a cache that works in this
// process only; a nil pointer of a client's type is an error. The client is used as
// it is and stays the caller's to close, after the cache. NewSource does not wait for
// Redis. It returns an error that names the field that it cannot use.
func NewSource[K comparable, V any](rdb redis.UniversalClient, src Source[K, V], o Options) (*Cache[K, V], error) {
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
		if o.Local.TTL = 30 * time.Second; rdb == nil {
			o.Local.TTL = math.MaxInt64 // as long as an entry's own: no invalidation can go unheard
		}
	}
	c := &Cache[K, V]{
		o: o, source: src, windows: o.windows(), breaker: o.guard(),
		absent:     &entry[V]{life: life{null: true}},
		doorkeeper: doorkeeper.New(2 * o.NullTTL), // a null in the local tier lives that long too
		flights:    flight.NewGroup[found[V]](o.Rebuild.ErrorHold),
		log:        logonce.New(o.Logger.With("cache", o.Name), "levee: "),
	}
	c.flights.Nested = c.breaker.Inside
	c.misses.c, c.unread.c, c.refreshes.c = c, c, c
	c.misses.do, c.unread.do, c.refreshes.do = c.rebuild, c.loadDegraded, c.rebuild
	if c.id, err = keyFunc(src.Key, o.MaxKey); err != nil {
		return nil, err
	}
	if c.format, err = newFormat[V](o, c.log); err != nil {
		return nil, err
	}
	if c.releaseName, err = claimName(rdb, o, c.format); err != nil {
		return nil, err
	}
	if c.local, err = tier.New[K, entry[V]](c.localOptions()); err != nil {
		c.releaseName()
		return nil, fmt.Errorf("cache: Local: %w", err)
	}
	c.local.Trust(rdb == nil) // with Redis not before invalidations arrive
	if c.fleet, err = fleet.New(rdb, o.keyspace(), fleet.Options(o.Rebuild), c.messages()); err != nil {
		c.local.Close()
		c.releaseName()
		return nil, named(err)
	}
	c.tagClears = c.fleet.TagClears()
	c.closing, c.close = context.WithCancel(context.Background())
	c.fed.Name, c.fed.Redis, c.fed.Logger, c.fed.Closing = o.Name, rdb, o.Logger, c.closing
	c.fed.Clear = func(ctx context.Context) error { return c.onMaster(c.Clear(ctx)) }
	c.fed.Invalidate = func(ctx context.Context, ids []string) error { return c.onMaster(c.invalidate(ctx, ids)) }
	c.fed.Ensure = c.ensure
	c.fed.Distrust = c.distrust
	return c, nil
}

// messages couples the local tier to the invalidations of other processes.
func (c *Cache[K, V]) messages() fleet.Messages {
	return fleet.Messages{
		Invalidated: func(id string) { c.local.Delete(id); c.flights.Forget(id) },
		Missed:      c.local.Flush,
		Cleared:     func() { c.local.Flush(); c.flights.ForgetAll() },
		Live: func(live bool) {
			if live {
				// An entry that was filled while no messages arrived may have missed its
				// invalidation. It counted for a second; it must not count for longer.
				c.local.Flush()
			}
			c.local.Trust(live)
		},
	}
}

// Close ends the cache: callers who wait get ErrClosed, as do all later calls but Stats
// and those of package cachedebug.
// It ends the contexts of the loads and waits for those that heed them, and for the
// others until the load timeout. What Redis has not confirmed is tried once more, for
// about a second. The client, Options.Breaker and Options.Filter stay as they are.
// Close may be called more than once and always returns nil.
func (c *Cache[K, V]) Close() error {
	c.close()
	<-c.flights.Close()
	c.loading.CloseWithin(c.o.loadTimeout())
	c.reopening.work.Wait()
	c.fleet.Close()
	c.local.Close()
	c.releaseName()
	return nil
}

// Check tests whether the cache can work with its Redis, for the start of a service:
// whether it answers, as a master of version 6.2 or later, accepts
// the client's password and database, lets it run every command of the cache and hear
// other processes' messages, has the replicas for Options.Rebuild.WaitReplicas, and has
// an eviction policy of the kind that suits a cache. It tries the commands on a key of
// its own, which it takes away again; of a cluster it tries them on one node. Without the right
// to INFO, Check cannot see the eviction policy.
//
// The error names the cache and the cause. It matches ErrUnavailable if the cache has to
// do without Redis: Gets are answered from the source then, so let no readiness probe depend
// on it. Any other error says what weakens a promise. Check takes some milliseconds; if Redis does not answer, some
// seconds, or until ctx ends. Without Redis it returns nil, after Close ErrClosed.
func (c *Cache[K, V]) Check(ctx context.Context) error {
	if c.closed() {
		return ErrClosed
	}
	return named(c.fleet.Check(ctx))
}
