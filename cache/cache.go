package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/mutexrebuild"
)

// A Loader reads the value of key from the source. It says that there is none by
// an error that matches [ErrNotFound] or that [Options.IsNotFound] recognizes; a nil
// pointer without an error is a value like any other. It is called concurrently for
// different keys, on goroutines of the cache. Its context has the values of the
// caller's, but not its end: it ends after the load timeout, and on Close. A panic
// or Goexit of it is an error of those who wait for the key.
type Loader[K comparable, V any] func(ctx context.Context, key K) (V, error)

// A BatchLoader reads the values of several keys. A key that is absent from the
// map does not exist; an error is that of all keys. The rest is as for [Loader].
type BatchLoader[K comparable, V any] func(ctx context.Context, keys []K) (map[K]V, error)

// A Source is where values come from, and what the cache has to know of them.
type Source[K comparable, V any] struct {
	// Load and LoadMany read from the source. One of them is needed. LoadMany is used
	// where there is no Load, and at present gets one key at a time.
	Load     Loader[K, V]
	LoadMany BatchLoader[K, V]
	// Key turns a key into the text that stands in Redis, of at most
	// Options.MaxKey bytes. Different keys must give different texts. Nil works
	// for strings, integers and encoding.TextMarshaler.
	Key func(K) string
	// TTL is how long a value may live. Nil, 0 or less means Options.TTL.
	TTL func(K, V) time.Duration
	// Clone copies a value for a caller who may change it. Nil means that values
	// with pointers, slices or maps in them are shared between callers, who must not
	// change what these lead to.
	Clone func(V) V
}

// A Cache answers for a source. It may be used concurrently. Make it with [New] or
// [NewSource], and Close it: it owns goroutines.
type Cache[K comparable, V any] struct {
	o       Options
	source  Source[K, V]
	format  format[V]
	windows windows
	id      func(K) (string, error)
	local   *localcache.Cache[K, *entry[V]]
	rebuild *mutexrebuild.Group[*entry[V]]
	breaker *breaker.Breaker
	journal *logonce.Log
	nothing *entry[V] // what is known of a key that does not exist, where no more is known
	door    *doorkeeper
	counts  counters

	trusting sync.Mutex // held by trust
}

// New makes a cache of what load reads. See [NewSource].
func New[K comparable, V any](rdb redis.UniversalClient, load Loader[K, V], o Options) (*Cache[K, V], error) {
	return NewSource(rdb, Source[K, V]{Load: load}, o)
}

// NewSource makes a cache of src. Caches of the same name that use the same
// Redis are one cache. An untyped nil rdb makes a cache that works in this
// process only; a nil pointer of a client's type is an error. The client is used as
// it is and stays the caller's to close, after the cache. NewSource does not wait for
// Redis. It returns an error that names the field that it cannot use.
func NewSource[K comparable, V any](rdb redis.UniversalClient, src Source[K, V], o Options) (*Cache[K, V], error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if src.Load == nil && src.LoadMany == nil {
		return nil, errors.New("cache: Source.Load and Source.LoadMany are both nil")
	}
	if src.Load == nil {
		src.Load = one(src.LoadMany)
	}
	c := &Cache[K, V]{o: o, source: src, breaker: o.Breaker, nothing: &entry[V]{life: life{null: true}},
		windows: o.windows(),
		journal: logonce.New(o.Logger.With("cache", o.Name), "levee: "),
		door:    newDoorkeeper(2 * o.NullTTL)} // a null in the local tier lives that long too
	if c.id, err = keyFunc(src.Key, o.MaxKey); err != nil {
		return nil, err
	}
	c.format = newFormat[V](o, c.journal)
	if c.local, err = localcache.New[K, *entry[V]](o.Local); err != nil {
		return nil, fmt.Errorf("cache: Local: %w", err)
	}
	c.trusting.Lock() // for news that come before there is a c.rebuild
	c.rebuild, err = mutexrebuild.New(rdb, o.Name, mutexrebuild.Format[*entry[V]]{
		Encode: c.format.encode,
		Decode: c.decode,
	}, c.events(), o.Rebuild)
	c.trusting.Unlock()
	if err != nil {
		c.local.Close()
		return nil, fmt.Errorf("cache: %w", err)
	}
	c.trust() // not before the first heartbeat, unless others share the link
	return c, nil
}

// events couples the local tier to the invalidations of other processes.
func (c *Cache[K, V]) events() mutexrebuild.Events {
	return mutexrebuild.Events{
		Mark:        func(id string) any { return c.local.Mark(id) },
		Current:     c.current,
		Invalidated: c.local.Delete,
		Missed:      c.local.Flush,
		Health:      func(bool) { c.trust() },
	}
}

// current reports whether the local tier would answer with what was read under mark.
func (c *Cache[K, V]) current(id string, mark any) bool {
	return c.local != nil && c.o.Local.DistrustTTL >= 0 && mark == any(c.local.Mark(id))
}

// trust lets local entries count for their whole life if invalidations arrive. It
// asks for the present state, in turns: of two calls with news of their own, the
// older news could be the last to take effect, and would stay.
func (c *Cache[K, V]) trust() {
	c.trusting.Lock()
	defer c.trusting.Unlock()
	live := c.rebuild.Live()
	failpoint.At("trust")
	if live {
		// What was filled while nothing was heard may have been overtaken by a message
		// that was lost. It was good for a second; it must not become good for longer.
		c.local.Flush()
	}
	c.local.Trust(live)
}

// Get returns the value of key: from the local tier, from Redis, or from the
// source, which at most one of all the callers in all processes asks. It returns
// when the value is there or ctx ends.
//
// A value past its TTL may be the answer, see the package's documentation;
// [Cache.Fetch] tells. The error matches [ErrNotFound] if the source has no such key,
// [ErrOverloaded] if the source could not be asked, [ErrInvalidKey], [ErrClosed],
// [ErrLoadTimeout], [ErrReentrant], or the error of ctx or of the loader. It is never
// one of Redis: when Redis is out of reach, the source answers. An error of the loader
// also answers those who ask for the key within Rebuild.ErrorHold after it.
func (c *Cache[K, V]) Get(ctx context.Context, key K) (V, error) {
	e, kind := c.local.Get(key)
	if kind == localcache.Value {
		return c.own(e), nil // a hit allocates nothing and asks no clock
	}
	e, _, err := c.beyond(ctx, key, kind)
	return c.own(e), err
}

// Fetch is [Cache.Get], and tells where the value came from and how old it is.
func (c *Cache[K, V]) Fetch(ctx context.Context, key K) (Result[V], error) {
	e, kind := c.local.Get(key)
	tier, err := TierLocal, error(nil)
	if kind != localcache.Value {
		e, tier, err = c.beyond(ctx, key, kind)
	}
	now, kept := time.Now(), kind != localcache.Value && tier == TierLocal
	return Result[V]{Value: c.own(e), Tier: tier, Age: e.age(now), Stale: err == nil && (e.past(now) || kept && c.doubtful(e))}, err
}

// beyond is the read path of what is no value in the local tier, in the order in
// which it is taken.
func (c *Cache[K, V]) beyond(ctx context.Context, key K, local localcache.Kind) (*entry[V], Tier, error) {
	c.counts.asked.Add(1)
	if local == localcache.Null {
		return c.answer(c.nothing, TierLocal, &c.counts.null)
	}
	if c.rebuild.Closed() { // the filter would go on to answer
		return c.fail(ErrClosed)
	}
	id, err := c.id(key)
	if err != nil {
		return c.fail(err)
	}
	if !c.mayContain(ctx, id) {
		return c.answer(c.nothing, TierFilter, &c.counts.filter)
	}
	if !c.rebuild.Reachable() {
		if e := c.keptWhileAway(ctx, key, id); e != nil {
			return c.answer(e, TierLocal, c.counts.ofKept(c.doubtful(e)))
		}
	}
	// Redis, and on a miss the rebuild: one flight, one lease, the loader.
	got, err := c.rebuild.Do(ctx, id, func(ctx context.Context, degraded bool) (*entry[V], error) {
		return c.load(ctx, key, id, degraded)
	})
	if err != nil {
		if e := c.keptInstead(key, err); e != nil {
			c.journal.Warn("a load failed and a value kept in this process answers", logonce.Name("key", id), "error", err)
			return c.answer(e, TierLocal, c.counts.ofKept(c.doubtful(e)))
		}
		return c.fail(err)
	}
	c.keep(key, id, got)
	if got.Condition == mutexrebuild.Aging && got.First {
		c.refresh(ctx, key, id, got)
	}
	return c.answer(got.Value, tierOf(got), c.counts.of(got.Value.null, got.Value.past(time.Now()), got.First, got.Origin))
}

// answer is the one place where a read beyond the local tier ends well. It counts,
// and unwraps the null.
func (c *Cache[K, V]) answer(e *entry[V], tier Tier, outcome *counter) (*entry[V], Tier, error) {
	outcome.Add(1)
	if e.null {
		return e, tier, ErrNotFound
	}
	return e, tier, nil
}

// own gives the value of e to a caller, who may change it if there is a Clone.
func (c *Cache[K, V]) own(e *entry[V]) (value V) {
	switch {
	case e == nil || e.null:
		return value
	case c.source.Clone != nil:
		return c.source.Clone(e.value)
	}
	return e.value
}

// fail is the one place where a read ends without an answer.
func (c *Cache[K, V]) fail(err error) (*entry[V], Tier, error) {
	c.counts.errors.Add(1)
	return nil, TierNone, c.explain(err)
}

// explain gives an error of the tiers below the names that this package promises.
func (c *Cache[K, V]) explain(err error) error {
	switch {
	case errors.Is(err, mutexrebuild.ErrClosed):
		return ErrClosed
	case errors.Is(err, breaker.ErrOpen), errors.Is(err, breaker.ErrLimited):
		return fmt.Errorf("%w: %w", ErrOverloaded, err)
	case errors.Is(err, breaker.ErrTimeout): // it sees most of them first
		return fmt.Errorf("%w: %w", ErrLoadTimeout, err)
	}
	return err
}

// mayContain reports whether the filter leaves open that id exists.
func (c *Cache[K, V]) mayContain(ctx context.Context, id string) bool {
	return c.o.Filter == nil || c.o.Filter.MayContain(ctx, id)
}

// load asks the source for somebody who waits, within the breaker's limits.
func (c *Cache[K, V]) load(ctx context.Context, key K, id string, degraded bool) (*entry[V], error) {
	if degraded {
		return c.ask(ctx, key, id, c.breaker.DoDegraded)
	}
	return c.ask(ctx, key, id, c.breaker.Do)
}

// ask asks the source by way of do, one of the breaker's.
func (c *Cache[K, V]) ask(ctx context.Context, key K, id string, do func(context.Context, func(context.Context) error) error) (*entry[V], error) {
	began := time.Now()
	var value V
	var null bool
	err := do(ctx, func(ctx context.Context) (err error) {
		// Not found is a success of the source. If do returns before this does,
		// it returns an error, and nobody reads what is written here.
		value, err = c.source.Load(ctx, key)
		if null = c.notFound(err); null {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if null {
		if c.o.Filter != nil {
			c.counts.filterFalse.Add(1)
		}
		e := &entry[V]{life: life{null: true}, private: !c.door.admits(id, began)}
		e.stamp(time.Now(), jittered(c.o.NullTTL, c.o.Jitter), time.Since(began))
		return e, nil
	}
	return c.fresh(key, value, time.Since(began)), nil
}

func (c *Cache[K, V]) notFound(err error) bool {
	return err != nil && (errors.Is(err, ErrNotFound) || c.o.IsNotFound != nil && c.o.IsNotFound(err))
}

// fresh makes an entry of a value that the source holds now.
func (c *Cache[K, V]) fresh(key K, value V, cost time.Duration) *entry[V] {
	ttl := c.o.TTL
	if c.source.TTL != nil {
		if own := c.source.TTL(key, value); own > 0 {
			ttl = own
		}
	}
	e := &entry[V]{value: value}
	e.stamp(time.Now(), jittered(ttl, c.o.Jitter), cost)
	return e
}

// Close ends the cache: whoever waits gets ErrClosed, as does every later call.
// It ends the contexts of the loads and waits for those that heed them, and for the
// others until the load timeout. What Redis has not confirmed is tried once more, for
// about a second. The client, Options.Breaker and Options.Filter stay as they are.
// Close may be called more than once and always returns nil.
func (c *Cache[K, V]) Close() error {
	c.rebuild.Close()
	c.local.Close()
	return nil
}
