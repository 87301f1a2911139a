package cache

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
	"github.com/levee-go/levee/localcache"
)

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
	answer, err := c.read(ctx, key, kind)
	return c.own(answer.entry), err
}

// Fetch is [Cache.Get], and tells where the value came from and how old it is.
func (c *Cache[K, V]) Fetch(ctx context.Context, key K) (Result[V], error) {
	e, kind := c.local.Get(key)
	if kind == localcache.Value {
		now := time.Now()
		return Result[V]{Value: c.own(e), Tier: TierLocal, Age: e.age(now), Stale: e.past(now)}, nil
	}
	answer, err := c.read(ctx, key, kind)
	return Result[V]{Value: c.own(answer.entry), Tier: answer.tier, Age: answer.entry.age(time.Now()), Stale: answer.stale}, err
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

// A found is an answer. What Fetch and the counters say of it is settled where it is
// chosen.
type found[V any] struct {
	entry    *entry[V]
	tier     Tier
	stale    bool // past its TTL, or perhaps invalidated by another process without our knowledge
	fallback bool // answers because the load failed or takes too long
}

// read is the read path beyond a value in the local tier: [Cache.lookup] answers or
// joins a flight, the caller who opens a flight starts it, and all wait for its end.
func (c *Cache[K, V]) read(ctx context.Context, key K, kind localcache.Kind) (found[V], error) {
	l := c.lookup(ctx, key, kind)
	if l.opened {
		c.start(ctx, c.newJob(ctx, key, l.caller.Flight))
	}
	return c.wait(ctx, &l, time.Time{})
}

// A lookup is one caller's read of one key.
type lookup[K comparable, V any] struct {
	key    K
	id     string
	over   bool // answer or err is the end; else the caller waits
	answer found[V]
	err    error
	caller flight.Caller[found[V]]
	opened bool // the flight, by this caller, who has to start it
}

// lookup goes through the tiers of this process, in the order in which they are
// asked, and then joins the flight of key.
func (c *Cache[K, V]) lookup(ctx context.Context, key K, kind localcache.Kind) lookup[K, V] {
	c.counts.asked.Add(1)
	l := lookup[K, V]{key: key}
	if kind == localcache.Null {
		return l.answered(found[V]{entry: c.absent, tier: TierLocal})
	}
	if c.closing.Err() != nil { // the filter would go on to answer
		return l.failed(ErrClosed)
	}
	id, err := c.id(key)
	if err != nil {
		return l.failed(err)
	}
	l.id = id
	if c.o.Filter != nil && !c.o.Filter.MayContain(ctx, id) {
		return l.answered(found[V]{entry: c.absent, tier: TierFilter})
	}
	if c.leases.Down() {
		if kept, ok := c.staleDuringOutage(ctx, key, id); ok {
			return l.answered(kept)
		}
	}
	if ctx.Err() != nil {
		return l.failed(wait.Ended(ctx))
	}
	caller, role, err := c.flights.Join(ctx, id)
	if err != nil {
		if !errors.Is(err, flight.ErrClosed) && !errors.Is(err, flight.ErrReentrant) {
			c.counts.held.Add(1)
		}
		return l.failed(err)
	}
	l.caller = caller
	switch role {
	case flight.Opened:
		l.opened = true
	case flight.LateForFallback:
		go c.rereadFallback(flight.Detached(ctx), caller.Flight)
	}
	return l
}

func (l lookup[K, V]) answered(answer found[V]) lookup[K, V] {
	l.over, l.answer = true, answer
	return l
}

func (l lookup[K, V]) failed(err error) lookup[K, V] {
	l.over, l.err = true, err
	return l
}

// wait ends a read: every answer and every error beyond the local tier goes through
// here, is counted, and a null becomes ErrNotFound. The caller has waited since then,
// for other keys; the zero time: for none.
func (c *Cache[K, V]) wait(ctx context.Context, l *lookup[K, V], since time.Time) (found[V], error) {
	answer, first, err := l.answer, true, l.err
	if !l.over {
		answer, first, err = l.caller.Wait(ctx, flight.Patience[found[V]]{
			SoftTimeout: c.o.SoftTimeout, Since: since,
			Own: func() (found[V], bool) { return c.staleWhileSlow(l.key) },
		})
	}
	if err != nil && !errors.Is(err, ErrInvalidKey) {
		if kept, ok := c.staleOnError(l.key, err); ok {
			c.log.Warn("a load failed and a value kept in this process answers", logonce.Name("key", l.id), "error", err)
			answer, err = kept, nil
		}
	}
	if err != nil {
		c.counts.errors.Add(1)
		return found[V]{}, named(err)
	}
	c.counts.count(answer.entry.null, answer.tier, answer.stale, answer.fallback, first)
	if answer.entry.null {
		return answer, ErrNotFound
	}
	return answer, nil
}
