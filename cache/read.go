package cache

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
	"github.com/levee-go/levee/localcache"
)

// Get returns the value of key: from the local tier, from Redis, or from the source,
// which one caller asks for all those in all processes who want the key. It returns when
// the value is there or ctx ends.
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
		return c.cloned(&e.value), nil // a hit allocates nothing and asks no clock
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
	if e == nil || e.null {
		return value
	}
	return c.cloned(&e.value)
}

func (c *Cache[K, V]) cloned(value *V) V {
	if c.source.Clone != nil {
		return c.source.Clone(*value)
	}
	return *value
}

// A found is an answer. What Fetch and the counters say of it is settled where it is
// chosen.
type found[V any] struct {
	entry    *entry[V]
	tier     Tier
	stale    bool            // past its TTL, or perhaps invalidated by another process without our knowledge
	fallback bool            // answers because the load failed or takes too long
	load     context.Context // of the load that brought it, also if it failed; only for Hooks
}

// read is the read path beyond a value in the local tier. [Cache.lookup] asks what this
// process knows, [Cache.join] joins the flight of the key, the caller who opened it
// starts it, and [Cache.conclude] waits for its end.
func (c *Cache[K, V]) read(ctx context.Context, key K, kind localcache.Kind) (found[V], error) {
	l := c.lookup(ctx, key, kind)
	var j *job[K, V]
	c.join(ctx, &l, func() *job[K, V] { j = &job[K, V]{}; return j })
	if l.opened {
		c.start(ctx, j)
	}
	if !l.over && !l.caller.Ready() {
		defer breaker.Pause(ctx)() // if it is that of a load, this one waits for another
	}
	return c.conclude(ctx, &l, time.Time{})
}

// A lookup is one caller's read of one key.
type lookup[K comparable, V any] struct {
	key    K
	id     string
	over   bool // answer or err is the end; else the caller waits
	answer found[V]
	err    error
	held   bool // err is the held error of a load
	caller flight.Caller[found[V]]
	opened bool // the flight, by this caller, who has to start its job
}

// lookup goes through the tiers of this process, in the order in which they are
// asked: a null, the filter, and during an outage the values that were kept. The value
// in the local tier comes before it, in Get.
func (c *Cache[K, V]) lookup(ctx context.Context, key K, kind localcache.Kind) lookup[K, V] {
	c.counts.asked.Add(1)
	l := lookup[K, V]{key: key}
	if kind == localcache.Null {
		return l.answered(found[V]{entry: c.absent, tier: TierLocal})
	}
	if c.closed() { // the filter would go on to answer
		return l.failed(ErrClosed)
	}
	if l.id, l.err = c.id(key); l.err != nil {
		return l.failed(l.err)
	}
	if c.o.Filter != nil && !c.o.Filter.MayContain(ctx, l.id) {
		if kind == localcache.Past { // else no second look: a flood of absent keys ends here
			c.compareKept(ctx, key, l.id)
		}
		return l.answered(found[V]{entry: c.absent, tier: TierFilter})
	}
	if c.fleet.Down(l.id) {
		if kept, ok := c.staleDuringOutage(ctx, key, l.id); ok {
			return l.answered(kept)
		}
	}
	if ctx.Err() != nil {
		return l.failed(wait.Ended(ctx))
	}
	return l
}

// join puts a lookup that is not over on the flight of its key. If it opens that, a job
// of room runs it. It calls no function of the user's: a flight that is opened here has to
// be started, and a batch joins several before it starts them.
func (c *Cache[K, V]) join(ctx context.Context, l *lookup[K, V], room func() *job[K, V]) {
	if l.over {
		return
	}
	caller, role, err := c.flights.JoinIn(ctx, l.id, func() *flight.Flight[found[V]] {
		j := room()
		j.key, j.id, j.ctx, j.flight = l.key, l.id, ctx, &j.own
		return j.flight
	})
	switch {
	case err != nil:
		l.held = !errors.Is(err, flight.ErrClosed) && !errors.Is(err, flight.ErrReentrant)
		*l = l.failed(err)
	case role == flight.Opened:
		l.opened = true
	case role == flight.LateForFallback:
		go c.rereadFallback(flight.Detached(ctx), caller.Flight)
	}
	l.caller = caller
}

func (l lookup[K, V]) answered(answer found[V]) lookup[K, V] {
	l.over, l.answer = true, answer
	return l
}

func (l lookup[K, V]) failed(err error) lookup[K, V] {
	l.over, l.err = true, err
	return l
}

// conclude ends a read: it waits for the flight, and counts. Every answer and every error
// beyond a value in the local tier goes through here, and a null becomes ErrNotFound.
// since is when a GetMany began to wait for its keys; zero: now.
func (c *Cache[K, V]) conclude(ctx context.Context, l *lookup[K, V], since time.Time) (found[V], error) {
	answer, first, err := l.answer, true, l.err
	if !l.over {
		answer, first, err = c.wait(ctx, l, since)
	}
	if err != nil && !errors.Is(err, ErrInvalidKey) {
		if kept, ok := c.staleOnError(l.key, err); ok {
			c.log.Warn("a read failed and a value kept in this process answers", logonce.Name("key", l.id), "error", err)
			answer, first, err = kept, true, nil
		}
	}
	if err != nil {
		if c.counts.errors.Add(1); l.held {
			c.counts.held.Add(1)
		}
		return found[V]{}, named(err)
	}
	if answer.stale {
		c.times.stale.add(&ages, answer.entry.age(time.Now()))
	}
	c.counts.count(answer.entry.null, answer.tier, answer.stale, answer.fallback, first)
	if answer.entry.null {
		return answer, ErrNotFound
	}
	if s := c.sample.Load(); s != nil {
		s.note(l.key)
	}
	return answer, nil
}

// wait waits for the flight of a lookup.
func (c *Cache[K, V]) wait(ctx context.Context, l *lookup[K, V], since time.Time) (answer found[V], first bool, err error) {
	patience := flight.Patience[found[V]]{
		SoftTimeout: c.o.SoftTimeout, Since: since,
		Own: func() (found[V], bool) { return c.staleWhileSlow(l.key) },
	}
	if l.opened || l.caller.Ready() {
		return l.caller.Wait(ctx, patience)
	}
	if since.IsZero() {
		since = time.Now()
	}
	_, done := c.begin(ctx, c.o.Hooks.FlightWait, Op{Key: l.id, Keys: 1})
	answer, first, err = l.caller.Wait(ctx, patience)
	c.times.flightWait.add(&latencies, time.Since(since))
	done(Outcome{Err: err, Load: answer.load})
	return answer, first, err
}
