package cache

import (
	"context"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache/internal/inside"
)

// Name returns [Options.Name].
func (c *Cache[K, V]) Name() string { return c.o.Name }

// Breaker returns [Options.Breaker], or the breaker that the cache has made for itself,
// whose name is that of the cache.
func (c *Cache[K, V]) Breaker() *breaker.Breaker { return c.o.Breaker }

// Filter returns [Options.Filter], nil if there is none.
func (c *Cache[K, V]) Filter() Filter { return c.o.Filter }

// Inside is for the packages of this module that show, administer and audit caches.
func (c *Cache[K, V]) Inside() inside.Cache {
	return inside.Cache{
		Inspect: c.inspect, TopKeys: c.topKeys,
		Invalidate: c.byTexts(c.invalidate), Expire: c.byTexts(c.expire), Refresh: c.refreshTexts,
		Audit: c.audited(),
	}
}

func (c *Cache[K, V]) topKeys(n int) []inside.HotKey {
	var keys []inside.HotKey
	for _, hot := range c.local.TopKeys(n) {
		if id, err := c.id(hot.Key); err == nil { // else no key of this cache
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

// describe says what is to be said of an entry. An entry that is about to be refreshed
// early counts as fresh.
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
