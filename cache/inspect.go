package cache

import (
	"context"
	"time"

	"github.com/levee-go/levee/breaker"
)

// Name returns [Options.Name].
func (c *Cache[K, V]) Name() string { return c.o.Name }

// Breaker returns [Options.Breaker], or the breaker that the cache has made for itself,
// whose name is that of the cache.
func (c *Cache[K, V]) Breaker() *breaker.Breaker { return c.o.Breaker }

// Filter returns [Options.Filter], nil if there is none.
func (c *Cache[K, V]) Filter() Filter { return c.o.Filter }

// A HotKey is a key that is read often.
type HotKey struct {
	ID string // the key as text
	// Share is the part of all Gets, lately, that were for the key. It may be too high by
	// Error.
	Share, Error float64
}

// TopKeys returns the keys that were read most in the last minutes, the hottest first: n
// of them at the most, and none unless Options.Local.HotKeys is set. They are found from a
// sample of the Gets, one in 64, whatever these found. Without a local tier there are none.
func (c *Cache[K, V]) TopKeys(n int) []HotKey {
	var keys []HotKey
	for _, hot := range c.local.TopKeys(n) {
		if id, err := c.id(hot.Key); err == nil { // else no key of this cache
			keys = append(keys, HotKey{ID: id, Share: hot.Share, Error: hot.Error})
		}
	}
	return keys
}

// An Inspection is the state of a key, see [Cache.Inspect].
type Inspection struct {
	ID string // the key as text

	Filter       string    // "may exist", "absent", or "" without a filter
	Local        *Standing // in the local tier of this process; nil: nothing
	LocalUnknown bool      // the key's text cannot be turned back into the key, so the local tier was not read
	Redis        *Standing // in Redis; nil: nothing, or Redis was not read
	Loading      bool      // readers of this process wait for the key
	HeldError    error     // of a load that failed a moment ago, and that answers for it

	RedisKey    string          // name of the value in Redis; "" without Redis
	Leased      bool            // somebody loads the value
	LeaseLeft   time.Duration   // for how long others wait for that, unless the lease is renewed
	Awaited     bool            // another process waits for it
	Holds       []time.Duration // of writers: for how long each keeps the key closed at the most, the longest first
	Foreign     bool            // there is a key of another Redis type
	Outage      bool            // levee does not call Redis at present
	Unconfirmed bool            // an invalidation of this process waits for Redis to confirm it
}

// A Standing is what one tier holds of a key.
type Standing struct {
	// State is "fresh", "stale" (past its TTL, served while it is refreshed), "fallback" (served
	// only if its load fails, see Options.StaleIfError) or "dead" (not served any more).
	// What was invalidated or cleared is dead, and so is what cannot be read. What the local
	// tier has held for its whole time, though its TTL is not past, is "kept": it is served
	// if Redis and the source fail.
	State string
	Null  bool          // the key is known not to exist
	Age   time.Duration // since the value was read from the source
	TTL   time.Duration // what remains of it; 0 when it is past
	Left  time.Duration // until the tier drops it, or no longer answers with it
	Bytes int           // in Redis: of the value with its header; local: what the budget counts
	Value any           // nil for a null and for what cannot be read. Nobody may change it.
}

// Inspect looks up the key whose text is id, for somebody who looks for a fault. It
// changes nothing, counts nothing and loads nothing. It reads Redis, in one round trip.
// The error matches ErrInvalidKey if no key has this text, or ErrUnavailable if Redis
// did not answer; in this case the Inspection says what this process knows.
//
// With a Source.Key, and with keys that have a MarshalText but no UnmarshalText, the
// local tier cannot be read by text.
func (c *Cache[K, V]) Inspect(ctx context.Context, id string) (Inspection, error) {
	key, id, known, err := c.keyOf(id)
	if err != nil {
		return Inspection{}, err
	}
	found := Inspection{ID: id, LocalUnknown: !known && c.local != nil}
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
		found.Redis = &Standing{State: "dead", Left: there.Left, Bytes: len(there.Value.Data)}
		if e, ok := c.format.decode(id, there.Value.Data); ok && !there.Value.TooLong {
			c.describe(found.Redis, e, now)
		}
	}
	return found, named(err)
}

func (c *Cache[K, V]) standingLocally(key K, now time.Time) *Standing {
	held, ok := c.local.Inspect(key)
	if !ok {
		return nil
	}
	s := &Standing{State: "dead", Null: held.Null, Age: held.Age, Left: held.Left, Bytes: held.Bytes}
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
func (c *Cache[K, V]) describe(s *Standing, e *entry[V], now time.Time) {
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
