package cache

import (
	"context"
	"time"

	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/internal/rebuild"
)

// Name returns [Options.Name].
func (c *Cache[K, V]) Name() string { return c.o.Name }

// Inside returns what the packages of this module that show, export, administer and audit caches
// need of c. Other packages cannot use it.
func (c *Cache[K, V]) Inside() inside.Cache {
	return inside.Cache{
		Breaker: c.o.Breaker, Filter: c.o.Filter,
		Inspect: c.inspect, TopKeys: c.topKeys,
		Invalidate: c.byTexts(c.invalidate), Expire: c.byTexts(c.expire), Refresh: c.refreshTexts,
		Audit: c.audited(),
	}
}

func (c *Cache[K, V]) topKeys(n int) []inside.HotKey {
	var keys []inside.HotKey
	for _, hot := range c.local.TopKeys(n) {
		if id, err := c.id(hot.Key); err == nil { // otherwise it is not a key of this cache
			keys = append(keys, inside.HotKey{ID: id, Share: hot.Share, Error: hot.Error})
		}
	}
	return keys
}

func (c *Cache[K, V]) inspect(ctx context.Context, id string) (inside.Inspection, error) {
	key, id, known, err := c.keyOf(id)
	if err != nil {
		return inside.Inspection{}, err
	}
	found := inside.Inspection{ID: id, LocalUnknown: !known && c.local != nil}
	now := time.Now()
	if known {
		found.Local = c.standingLocally(key, now)
	}
	if c.o.Filter != nil {
		if found.Filter = "absent"; c.o.Filter.MayContain(ctx, id) {
			found.Filter = "may exist"
		}
	}
	found.Loading, found.HeldError = c.flights.Peek(id)
	there, err := c.fleet.Inspect(ctx, id)
	found.RedisKey, found.Leased, found.LeaseLeft, found.Awaited = there.Key, there.Leased, there.LeaseLeft, there.Awaited
	found.Holds, found.Foreign = there.Holds, there.Foreign
	found.Outage, found.Unconfirmed = there.Outage, there.Unconfirmed
	if len(there.Value.Data) > 0 {
		found.Redis = &inside.Standing{State: "dead", Left: there.Left, Bytes: len(there.Value.Data)}
		if e, ok := c.format.decode(id, there.Value.Data); ok && !there.Value.TooLong {
			c.describe(found.Redis, e, now)
		}
	}
	return found, named(err)
}

func (c *Cache[K, V]) standingLocally(key K, now time.Time) *inside.Standing {
	held, ok := c.local.Inspect(key)
	if !ok {
		return nil
	}
	s := &inside.Standing{State: "dead", Null: held.Null, Age: held.Age, Left: held.Left, Bytes: held.Bytes}
	if held.Value != nil {
		c.describe(s, held.Value, now)
	} else if held.Left > 0 {
		s.State = "fresh"
	}
	switch {
	case held.Left > 0:
	case !held.Kept:
		s.State = "dead"
	case s.State == "fresh":
		s.State = "kept"
	}
	return s
}

// describe fills in the state, times and value of an entry. An entry that is due for an early
// refresh counts as fresh.
func (c *Cache[K, V]) describe(s *inside.Standing, e *entry[V], now time.Time) {
	s.Null, s.Age, s.TTL = e.null, e.age(now), e.left(now)
	if !e.null {
		s.Value = c.own(e)
	}
	if !c.cleared(e) {
		s.State = c.windows.of(e.life, now, 1).String()
	}
}

func (s state) String() string {
	return [...]string{fresh: "fresh", early: "fresh", stale: "stale", fallback: "fallback", dead: "dead"}[s]
}

// audited returns what package audit needs to find writers that forget to invalidate.
func (c *Cache[K, V]) audited() inside.Audit[K, V] {
	return inside.Audit[K, V]{
		ReplicaLag: c.o.ReplicaLag, ID: c.id, Closing: c.closing, Log: c.log, Counts: &c.counts.audit, Shadow: &c.counts.shadow,
		Stale: func(age time.Duration) { c.counts.audit.Stale.Add(1); c.times.audit.add(&ages, age) },
		Sample: func() (pick func() (K, bool), stop func()) {
			s := &inside.Sample[K]{}
			if !c.sample.CompareAndSwap(nil, s) {
				return nil, nil
			}
			return s.Pick, func() { c.sample.Store(nil) }
		},
		Look:       c.lookApart,
		Served:     c.servedApart,
		Absent:     func(v V, err error) bool { return c.isAbsent(&v, err) },
		Clone:      func(v V) V { return c.cloned(&v) },
		Encode:     func(v V) ([]byte, error) { return c.format.marshal(v) },
		Invalidate: c.Invalidate,
	}
}

// lookApart reads the value that is served for key and then the source. It shares neither with
// other callers.
func (c *Cache[K, V]) lookApart(ctx context.Context, key K) (look inside.Look[V], err error) {
	if look, err = c.servedApart(ctx, key); err != nil || !look.There {
		return look, err
	}
	source, err := c.fromSource(ctx, key, look.ID)
	if err != nil {
		return inside.Look[V]{ID: look.ID}, named(err)
	}
	if look.Gone = source.null; !look.Gone {
		look.Source = c.own(source)
	}
	return look, nil
}

// servedApart is lookApart without the source.
func (c *Cache[K, V]) servedApart(ctx context.Context, key K) (look inside.Look[V], err error) {
	if look.ID, err = c.id(key); err != nil {
		return look, err
	}
	served, stored, err := c.served(ctx, key, look.ID)
	if err != nil || served == nil {
		return look, named(err)
	}
	look.There, look.Stored = true, stored
	if look.Null = served.null; !look.Null {
		look.Cached, look.Age = c.own(served), served.age(time.Now())
	}
	return look, nil
}

// served returns the value or null that a Get would return now, with a stored that differs from
// that of any later value. It returns nil if Get would load, or return an old value.
func (c *Cache[K, V]) served(ctx context.Context, key K, id string) (e *entry[V], stored any, err error) {
	now := time.Now()
	if held, ok := c.local.Inspect(key); ok && held.Left > 0 {
		if held.Null {
			return c.absent, held.Filled, nil
		}
		return c.fresh(held.Value, now)
	}
	if c.o.Filter != nil && !c.o.Filter.MayContain(ctx, id) {
		return c.absent, "filter", nil
	}
	value := c.fleet.GetOne(ctx, id)
	if value.Err != nil || len(value.Data) == 0 {
		return nil, nil, value.Err
	}
	e, ok := c.format.decode(id, value.Data)
	if !ok {
		return nil, nil, nil
	}
	return c.fresh(e, now)
}

func (c *Cache[K, V]) fresh(e *entry[V], now time.Time) (*entry[V], any, error) {
	if e.expired || e.past(now) || c.cleared(e) {
		return nil, nil, nil
	}
	return e, e.identity(), nil
}

// fromSource loads key without sharing the load with other callers.
func (c *Cache[K, V]) fromSource(ctx context.Context, key K, id string) (*entry[V], error) {
	ctx, stop := c.engine.LoadContext(ctx)
	defer stop()
	place, err := c.breaker.Acquire(ctx, background)
	if err != nil {
		return nil, c.engine.LoadError(ctx, err)
	}
	defer place.Release()
	r := &rebuild.Run{Subject: &subject[K]{key: key}, ID: id, Purpose: rebuild.Refresh}
	c.load(ctx, place, []*rebuild.Run{r})
	return loadedBy[V](r).entry, r.Loaded.Err
}
