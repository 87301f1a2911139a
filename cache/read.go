package cache

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/tier"
	"github.com/levee-go/levee/internal/wait"
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
	if kind == tier.Value {
		return c.cloned(&e.value), nil // a hit allocates nothing and asks no clock
	}
	answer, err := c.read(ctx, key, kind)
	return c.own(answer.entry), err
}

// Fetch is [Cache.Get], and tells where the value came from and how old it is.
func (c *Cache[K, V]) Fetch(ctx context.Context, key K) (Result[V], error) {
	e, kind := c.local.Get(key)
	if kind == tier.Value {
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
// process knows. A caller joins the flight of its key if one runs, and else reads Redis
// for itself: a value that is served ends there. Otherwise [Cache.join] joins or opens
// the flight, which the caller who opened it starts, and [Cache.conclude] waits for its end.
func (c *Cache[K, V]) read(ctx context.Context, key K, kind tier.Kind) (found[V], error) {
	l := c.lookup(ctx, key, kind)
	if c.joinRunning(ctx, &l); l.reads() {
		if l.hasRead = !c.fleet.Long(l.id); l.hasRead { // those who want a long value share a read
			contain.Call(func() error { c.readOwn(ctx, &l); return nil }, l.broken)
		}
		var j *job[K, V]
		c.join(ctx, &l, func() *job[K, V] { j = &job[K, V]{}; return j })
		if l.opened {
			c.start(ctx, j)
		}
	}
	return c.conclude(ctx, &l, nil, time.Time{})
}

// A lookup is one caller's read of one key.
type lookup[K comparable, V any] struct {
	key    K
	id     string
	over   bool // answer or err is the end; else the caller reads, or waits
	answer found[V]
	err    error
	held   bool // err is the held error of a load
	caller flight.Caller[found[V]]
	joined bool // a flight
	opened bool // the flight, by this caller, who has to start its job

	// impatient is true during an outage if the process has kept a value: the caller takes a
	// place among the degraded loads if one is free, and does not wait for one.
	impatient bool

	// What the caller has read in Redis for itself, after its Get began.
	hasRead  bool      // or tried to
	mark     tier.Mark // of the local tier, from before the read
	unread   bool      // Redis gave no answer: whether there is a value is unknown, and that is not a miss
	seen     []byte    // what it has read, if that is not served
	fallback found[V]  // what may be served if its load fails; without an entry there is none
}

// reads reports whether the caller has to read Redis before it opens a flight.
func (l *lookup[K, V]) reads() bool { return !l.over && !l.joined }

// broken ends a lookup whose read of Redis has panicked: the user's client may have hooks.
func (l *lookup[K, V]) broken(err error) {
	if err != nil && !l.over {
		*l = l.failed(err)
	}
}

// hasToRead reports whether a caller who waits has read nothing to fall back to yet.
func (l *lookup[K, V]) hasToRead() bool { return !l.over && !l.hasRead }

// readOwn reads Redis for callers. The reads begin after their Gets did, so what is found
// is for them, whatever has been invalidated before: no number is needed.
func (c *Cache[K, V]) readOwn(ctx context.Context, lookups ...*lookup[K, V]) {
	for _, l := range lookups {
		l.mark = c.local.Mark(l.id) // before the read: what is invalidated meanwhile must not fill
	}
	if len(lookups) == 1 { // without the slices: this is the path of every hit
		l := lookups[0]
		value, now := c.readOne(ctx, l.id)
		c.noteRead(ctx, l, value, now)
		return
	}
	ids := make([]string, len(lookups))
	for i, l := range lookups {
		ids[i] = l.id
	}
	values, now := c.readMany(ctx, ids)
	for i, value := range values {
		c.noteRead(ctx, lookups[i], value, now)
	}
}

// noteRead ends a lookup with what its caller has read, if that is served, and else keeps
// it for what follows.
func (c *Cache[K, V]) noteRead(ctx context.Context, l *lookup[K, V], value fleet.Value, now time.Time) {
	if l.unread = value.Err != nil; l.unread || len(value.Data) == 0 {
		return
	}
	answer, state := c.judge(l.id, value, now)
	if state < fallback {
		c.keep(l.mark, l.key, l.id, answer.entry, len(value.Data), math.MaxInt64, now)
		if state != fresh {
			c.refresh(ctx, l.key, l.id, value.Data)
		}
		l.over, l.answer = true, answer
		return
	}
	if l.seen = value.Data; state == fallback {
		l.fallback = answer
	}
}

// lookup goes through the tiers of this process, in the order in which they are
// asked: a null, the filter, and during an outage the values that were kept. The value
// in the local tier comes before it, in Get.
func (c *Cache[K, V]) lookup(ctx context.Context, key K, kind tier.Kind) lookup[K, V] {
	c.counts.asked.Add(1)
	l := lookup[K, V]{key: key}
	if kind == tier.Null {
		return l.answered(found[V]{entry: c.absent, tier: TierLocal})
	}
	if c.closed() { // the filter would go on to answer
		return l.failed(ErrClosed)
	}
	if l.id, l.err = c.id(key); l.err != nil {
		return l.failed(l.err)
	}
	if c.o.Filter != nil && !c.o.Filter.MayContain(ctx, l.id) {
		if kind == tier.Past { // else no second look: a flood of absent keys ends here
			c.compareKept(ctx, key, l.id)
		}
		return l.answered(found[V]{entry: c.absent, tier: TierFilter})
	}
	if c.fleet.Down(l.id) {
		if l = c.duringOutage(ctx, l); l.over {
			return l
		}
	}
	if ctx.Err() != nil {
		return l.failed(wait.Ended(ctx))
	}
	return l
}

// joinRunning puts a lookup on the flight of its key if one runs: so many who miss one
// key cost Redis few reads.
func (c *Cache[K, V]) joinRunning(ctx context.Context, l *lookup[K, V]) {
	if l.over {
		return
	}
	caller, running, err := c.flights.JoinRunning(ctx, l.id)
	if err != nil {
		*l = l.failed(err)
		return
	}
	l.caller, l.joined = caller, running
}

// join puts a lookup on the flight of its key. If it opens that, a job of room runs it.
// It calls no function of the user's: a flight that is opened here has to be started, and a
// batch joins several before it starts them.
func (c *Cache[K, V]) join(ctx context.Context, l *lookup[K, V], room func() *job[K, V]) {
	if !l.reads() {
		return
	}
	caller, opened, err := c.flights.JoinIn(ctx, l.id, l.fallback.entry != nil, func() *flight.Flight[found[V]] {
		j := room()
		j.key, j.id, j.ctx, j.flight = l.key, l.id, ctx, &j.own
		j.seen, j.unread, j.looks = l.seen, l.unread, !l.hasRead
		j.impatient = l.impatient
		return j.flight
	})
	if err != nil {
		l.held = !errors.Is(err, flight.ErrClosed) && !errors.Is(err, flight.ErrReentrant)
		*l = l.failed(err)
		return
	}
	l.caller, l.joined, l.opened = caller, true, opened
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
// batch are the lookups of a GetMany that end after l and have joined a flight unread, and
// since is when it began to wait for its keys; zero: now.
func (c *Cache[K, V]) conclude(ctx context.Context, l *lookup[K, V], batch []*lookup[K, V], since time.Time) (found[V], error) {
	answer, first, err := l.answer, true, l.err
	if !l.over {
		answer, first, err = c.wait(ctx, l, batch, since)
	}
	if err != nil && !errors.Is(err, ErrInvalidKey) {
		if old, ok := c.staleOnError(ctx, l, batch, err); ok {
			answer, first, err = old, true, nil
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
		s.Note(l.key)
	}
	return answer, nil
}

// wait waits for the flight of a lookup.
func (c *Cache[K, V]) wait(ctx context.Context, l *lookup[K, V], batch []*lookup[K, V], since time.Time) (answer found[V], first bool, err error) {
	if l.caller.Ready() {
		return l.caller.Wait(ctx, flight.Patience[found[V]]{})
	}
	patience := flight.Patience[found[V]]{
		SoftTimeout: c.o.SoftTimeout, Since: since,
		Fallback: func() (found[V], bool) { return c.staleWhileSlow(ctx, l, batch) },
	}
	if l.hasToRead() || slices.ContainsFunc(batch, (*lookup[K, V]).hasToRead) {
		patience.Lead = c.o.RedisTimeout
	}
	if l.opened {
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
