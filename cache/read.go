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
	"github.com/levee-go/levee/internal/rebuild"
	"github.com/levee-go/levee/internal/tier"
	"github.com/levee-go/levee/internal/wait"
)

// Get returns the value of key: from the local tier, from Redis, or from the source, which is
// read once for all callers in all processes that want the key. It returns when the value is
// there or ctx ends.
//
// Get may return a value past its TTL, see the package's documentation; [Cache.Fetch] reports
// that. The error matches [ErrNotFound] if the source does not have the key, [ErrOverloaded] if
// the loader could not be called, [ErrInvalidKey], [ErrClosed], [ErrLoadTimeout], [ErrReentrant],
// or the error of ctx or of the loader. It is never an error of Redis: when Redis is out of
// reach, Get calls the loader. An error of the loader is also returned to callers that read the
// key soon after it: for Rebuild.ErrorHold, for up to 4 s if the key keeps failing, or for as
// long as the error's RetryAfter says.
func (c *Cache[K, V]) Get(ctx context.Context, key K) (V, error) {
	if w := c.plain(ctx); w != nil {
		answer, err := c.read(ctx, key, tier.Miss, w)
		return c.values.own(answer.entry), err
	}
	e, kind := c.local.Get(key)
	if kind == tier.Value && (c.local.tagClears.Load() == 0 || !c.local.overtaken(e)) {
		return c.values.cloned(&e.value), nil // a hit allocates nothing and reads no clock
	}
	answer, err := c.read(ctx, key, kind, nil)
	return c.values.own(answer.entry), err
}

// Fetch returns the value of key as [Cache.Get] does, with where it came from and how old it is.
func (c *Cache[K, V]) Fetch(ctx context.Context, key K) (Result[V], error) {
	if w := c.plain(ctx); w != nil {
		answer, err := c.read(ctx, key, tier.Miss, w)
		return c.result(answer, time.Now()), err
	}
	e, kind := c.local.Get(key)
	if kind == tier.Value && (c.local.tagClears.Load() == 0 || !c.local.overtaken(e)) {
		now := time.Now()
		return c.result(found[V]{entry: e, tier: TierLocal, stale: e.past(now)}, now), nil
	}
	answer, err := c.read(ctx, key, kind, nil)
	return c.result(answer, time.Now()), err
}

// result makes the Result of an answer. It is stale if the answer was stale when it was chosen.
func (c *Cache[K, V]) result(answer found[V], now time.Time) Result[V] {
	return Result[V]{Value: c.values.own(answer.entry), Tier: answer.tier, Age: answer.entry.age(now), Stale: answer.stale}
}

// read reads a key that the local tier has no value of. [Cache.lookup] uses what this process
// knows. The caller joins the flight of its key if one runs, and otherwise reads Redis itself: if
// that brings a value to serve, [Cache.deliver] counts it and the read ends. [Cache.readOn] does
// the rest.
func (c *Cache[K, V]) read(ctx context.Context, key K, kind tier.Kind, w *want) (found[V], error) {
	l := lookup[K, V]{key: key, want: w, past: kind == tier.Past}
	c.identify(&l, kind)
	exists := l.phase == over || c.filter.exists(ctx, l.id)
	c.counts.asked.Add(1) // after the user's functions: a Get that one of them ends by a panic is not counted
	c.lookup(ctx, &l, exists)
	if c.joinRunning(ctx, &l); l.reads() {
		l.own = tried
		contain.GrowStack()
		contain.Call(func() error { c.readOwn(ctx, &l); return nil }, l.broken)
	}
	if l.phase == over && l.err == nil && !l.renews {
		return c.deliver(ctx, &l, l.answer, true)
	}
	return c.readOn(ctx, l)
}

// readOn continues a read that has to wait, to refresh or to fail: [Cache.join] joins or opens
// the flight, the caller that opened it starts it, [Cache.await] waits for its end, and
// [Cache.conclude] makes the result. It has a copy of the lookup on the heap, so that the lookup
// of a read that ends earlier, as nearly all do, stays on the stack.
func (c *Cache[K, V]) readOn(ctx context.Context, l lookup[K, V]) (found[V], error) {
	if l.renews {
		c.refresh(ctx, &l)
	}
	for {
		if l.reads() {
			if r := c.join(ctx, &l, nil); r != nil {
				c.engine.Start(ctx, r)
			}
		}
		if c.await(ctx, &l, nil, time.Time{}) {
			return c.conclude(ctx, &l, nil)
		}
	}
}

// readOwn reads Redis for callers. The reads begin after the callers' Gets did, so each caller
// may use its value, whatever was invalidated before: no flight number is needed.
func (c *Cache[K, V]) readOwn(ctx context.Context, lookups ...*lookup[K, V]) {
	for _, l := range lookups {
		l.mark = c.local.Mark(l.id) // before the read: a value that is invalidated meanwhile must not fill
	}
	if len(lookups) == 1 { // without the slices: this is the path of every hit
		l := lookups[0]
		value, now := c.remote.readOne(ctx, l.id)
		c.noteRead(ctx, l, value, now)
		return
	}
	ids := make([]string, len(lookups))
	for i, l := range lookups {
		ids[i] = l.id
	}
	values, now := c.remote.readMany(ctx, ids)
	for i, value := range values {
		c.noteRead(ctx, lookups[i], value, now)
	}
}

// noteRead ends a lookup with the value that its caller has read, if it is served; otherwise it
// keeps the value for the steps that follow.
func (c *Cache[K, V]) noteRead(ctx context.Context, l *lookup[K, V], value fleet.Value, now time.Time) {
	switch {
	case value.Err != nil:
		l.own = unanswered
	case len(value.Data) > 0:
		c.noteValue(ctx, l, value, now)
	}
	if l.phase != over && l.want.noLoad() {
		c.notCached(ctx, l)
	}
}

func (c *Cache[K, V]) noteValue(ctx context.Context, l *lookup[K, V], value fleet.Value, now time.Time) {
	answer, state := c.values.judge(l.id, value, now)
	l.seen = value.Data
	if state < fallback && answer.suits(l.want) {
		c.local.keep(l.mark, l.key, l.id, answer.entry, len(value.Data), math.MaxInt64, now)
		l.renews = state != fresh && !l.want.noLoad()
		l.answered(answer)
		return
	}
	if state != dead {
		l.fallBackTo(answer)
	}
}

// identify starts the lookup of a key the local tier could not serve; a null there ends it.
func (c *Cache[K, V]) identify(l *lookup[K, V], kind tier.Kind) {
	if l.want != nil {
		if answer, ok := c.again(l.key, l.want); ok {
			l.answered(answer)
			return
		}
	}
	switch {
	case kind == tier.Null:
		l.answered(found[V]{entry: c.values.absent, tier: TierLocal})
	case c.closed(): // the filter would still answer
		l.failed(ErrClosed)
	default:
		id, err := c.naming.id(l.key)
		if l.id = id; err != nil {
			l.failed(err)
		}
	}
}

// again looks into the local tier for a caller that has already missed it, or whose rules may
// refuse what is there. So it counts nothing.
func (c *Cache[K, V]) again(key K, w *want) (answer found[V], ok bool) {
	answer = found[V]{entry: c.values.absent, tier: TierLocal}
	switch e, kind := c.local.Again(key); {
	case kind == tier.Miss || kind == tier.Value && c.values.cleared(e):
		return answer, false
	case kind == tier.Value:
		answer.entry, answer.stale = e, e.past(time.Now())
	}
	return answer, answer.suits(w)
}

// lookup ends a read that this process can answer: the filter denies the key, or, during an
// outage, a value was kept. exists is the filter's answer.
func (c *Cache[K, V]) lookup(ctx context.Context, l *lookup[K, V], exists bool) {
	if l.phase == over {
		return
	}
	if !exists {
		if l.past { // only then a second look: a flood of absent keys ends here
			if e := c.local.keptEntry(l.key); e != nil && !e.past(time.Now()) {
				c.filter.compare(ctx, l.id)
			}
		}
		l.answered(found[V]{entry: c.values.absent, tier: TierFilter})
		return
	}
	if c.fleet.Down(l.id) {
		c.duringOutage(l)
	}
	if l.phase != over && ctx.Err() != nil {
		l.failed(wait.Ended(ctx))
	}
}

// joinRunning joins a lookup to the flight of its key if one runs: so many callers that miss one
// key cost Redis few reads.
func (c *Cache[K, V]) joinRunning(ctx context.Context, l *lookup[K, V]) {
	if l.phase == over || l.want != nil { // a caller with rules reads Redis first, since the flight may wait for more than the caller needs
		return
	}
	switch caller, _, err := c.flights.Join(ctx, l.id, flight.Callers{}, nil); {
	case err != nil:
		l.failed(err)
	case caller.Flight != nil:
		l.caller, l.phase = caller, waiting
	}
}

// join joins a lookup to the flight of its key. If none runs it opens one, and returns the run that has
// to be started, see [rebuild.Engine.Join]. It calls no function of the user's, since a batch joins
// several flights before it starts them.
func (c *Cache[K, V]) join(ctx context.Context, l *lookup[K, V], spare *rebuild.Run) (opened *rebuild.Run) {
	as := flight.Callers{Strict: l.want.strict(), Fallback: l.fallback.entry != nil}
	caller, opened, err := c.engine.Join(ctx, l.id, as, spare)
	if l.opened = opened != nil; err != nil {
		l.heldError = !errors.Is(err, flight.ErrClosed) && !errors.Is(err, flight.ErrReentrant)
		l.failed(err)
		return nil
	}
	if l.caller, l.phase = caller, waiting; !l.opened {
		return nil
	}
	opened.Subject, opened.Seen = &subject[K]{l.key, l.want}, l.seen
	opened.Look = l.own == untried
	opened.Impatient = l.fallback.tier == TierLocal && l.want == nil && c.fleet.Shared() // see duringOutage
	if l.own == unanswered {
		opened.Purpose = rebuild.Degraded
	}
	return opened
}

// await waits for the flight of a lookup, if it has joined one. It reports false if the flight's
// answer does not suit the caller, who has to join again. batch are the lookups of a GetMany that
// end after l and have joined a flight unread. since is when the GetMany began to wait for its
// keys; zero: now.
func (c *Cache[K, V]) await(ctx context.Context, l *lookup[K, V], batch []*lookup[K, V], since time.Time) (ended bool) {
	if l.phase == over {
		return true
	}
	answer, first, err := c.wait(ctx, l, batch, since)
	switch {
	case err == nil && !answer.suits(l.want):
		l.phase = asking
		return false
	case err == nil:
		l.answer = *answer
	}
	l.shared, l.err = !first, err
	return true
}

// conclude ends a read that had to go on, or a key of a batch, and counts it. Every error goes
// through conclude.
func (c *Cache[K, V]) conclude(ctx context.Context, l *lookup[K, V], batch []*lookup[K, V]) (found[V], error) {
	answer, first, err := l.answer, !l.shared, l.err
	if err != nil && !errors.Is(err, ErrInvalidKey) && !l.want.noLoad() {
		if old, ok := c.staleOnError(ctx, l, batch, err); ok {
			answer, first, err = old, true, nil
		}
	}
	switch {
	case err == nil:
		return c.deliver(ctx, l, answer, first)
	case l.want.noLoad() && errors.Is(err, ErrNotCached):
		c.counts.notCached.Add(1)
		return found[V]{}, err
	}
	if c.counts.errors.Add(1); l.heldError {
		c.counts.heldErrors.Add(1)
	}
	return found[V]{}, named(err)
}

// deliver counts an answer and turns a null into ErrNotFound. first says that no other caller has
// the answer yet. Every answer except values from the local tier goes through deliver.
func (c *Cache[K, V]) deliver(ctx context.Context, l *lookup[K, V], answer found[V], first bool) (found[V], error) {
	if l.want.composes() && (answer.fallback || answer.lagging || answer.entry != c.values.absent && c.values.cleared(answer.entry)) {
		flight.Doubt(ctx)
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
func (c *Cache[K, V]) wait(ctx context.Context, l *lookup[K, V], batch []*lookup[K, V], since time.Time) (answer *found[V], first bool, err error) {
	if l.caller.Ready() {
		return ofFlight[V](l.caller.Wait(ctx, flight.Patience{}))
	}
	patience := flight.Patience{
		SoftTimeout: c.o.SoftTimeout, Since: since,
		Fallback: func() (any, bool) {
			old, ok := c.staleWhileSlow(ctx, l, batch)
			return &old, ok
		},
	}
	if l.hasToRead() || slices.ContainsFunc(batch, (*lookup[K, V]).hasToRead) {
		patience.Lead = c.o.RedisTimeout
	}
	if l.opened {
		return ofFlight[V](l.caller.Wait(ctx, patience))
	}
	if since.IsZero() {
		since = time.Now()
	}
	_, done := c.begin(ctx, c.hooks.FlightWait, Op{Key: l.id, Keys: 1})
	answer, first, err = ofFlight[V](l.caller.Wait(ctx, patience))
	c.times.flightWait.add(&latencies, time.Since(since))
	done(Outcome{Err: err, Load: answer.loadContext()})
	return answer, first, err
}

// ofFlight returns the result of a flight with its type. With an error, answer may be nil.
func ofFlight[V any](result any, first bool, err error) (answer *found[V], _ bool, _ error) {
	answer, _ = result.(*found[V])
	return answer, first, err
}
