package cache

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/guard"
	"github.com/levee-go/levee/internal/rebuild"
	"github.com/levee-go/levee/internal/tier"
)

// A subject is what a cache knows of a key that is rebuilt.
type subject[K comparable] struct {
	key  K
	want *want // of the caller who opened the flight, or the one before it; those who have joined look for themselves, see await
}

// subjectOf returns what a cache knows of the key of r.
func subjectOf[K comparable](r *rebuild.Run) *subject[K] { return r.Subject.(*subject[K]) }

// loadedBy returns what r has loaded. The engine and the flights are compiled once, and not for each type
// of keys and values: so they know answers as any, each a *found.
func loadedBy[V any](r *rebuild.Run) *found[V] { return r.Loaded.Answer.(*found[V]) }

// maxBatch is how many keys one call of LoadMany loads.
const maxBatch = 256

// newEngine returns the engine that rebuilds the keys of c.
func (c *Cache[K, V]) newEngine() *rebuild.Engine {
	o := owner[K, V]{c}
	config := rebuild.Config{
		Owner: o, Fleet: c.fleet, Flights: c.flights, Breaker: c.breaker, Closing: c.closing,
		Closed: ErrClosed, Batch: 1, Singles: c.loader.loadsOne(),
		Read: func(ctx context.Context, id string) fleet.Value {
			value, _ := c.remote.readFully(ctx, id) // the engine takes care of the caller's time
			return value
		},
		Waiting: o.beginLeaseWait,
	}
	if c.loader.LoadMany != nil {
		config.Batch = maxBatch
	}
	if c.hooks.Rebuild != nil {
		config.Rebuilding = o.beginRebuild
	}
	return rebuild.New(config)
}

// An owner answers what the engine asks of a cache.
type owner[K comparable, V any] struct{ c *Cache[K, V] }

func (o owner[K, V]) Mark(id string) rebuild.Mark { return rebuild.Mark(o.c.local.Mark(id)) }

func (o owner[K, V]) Meanwhile(r *rebuild.Run) (any, bool) {
	s := subjectOf[K](r)
	if answer, ok := o.c.again(s.key, s.want); ok {
		return &answer, true
	}
	return nil, false
}

// Accept takes a value that another process has stored. A Refresh takes only a fresh value. A Warm
// takes any value within its TTL.
func (o owner[K, V]) Accept(r *rebuild.Run, value fleet.Value) (any, bool) {
	now := time.Now()
	if r.Purpose == rebuild.Warm {
		return nil, o.c.values.isWithinTTL(r.ID, value, now)
	}
	if len(value.Data) == 0 {
		return nil, false
	}
	s := subjectOf[K](r)
	answer, state := o.c.values.judge(r.ID, value, now)
	if state >= fallback || r.Purpose == rebuild.Refresh && state != fresh || !answer.suits(s.want) {
		return nil, false
	}
	r.Kept = o.c.local.keep(tier.Mark(r.Mark), s.key, r.ID, answer.entry, len(value.Data), math.MaxInt64, now)
	if state != fresh {
		o.c.refresh(r.Context(), &lookup[K, V]{key: s.key, id: r.ID, seen: value.Data})
	}
	return &answer, true
}

func (o owner[K, V]) Load(ctx context.Context, place *guard.Place, runs []*rebuild.Run) {
	o.c.loader.load(ctx, place, runs)
}

func (o owner[K, V]) Encode(r *rebuild.Run) (value fleet.Publication, ok bool) {
	e := loadedBy[V](r).entry
	if r.Purpose == rebuild.Warm {
		e.spread()
	}
	data, size, ttl, err := o.c.values.format.encode(r.ID, e)
	r.Loaded.Size = size
	if ok = err == nil && o.c.fleet.Storable(data, ttl); !ok && !e.private {
		o.c.counts.unpublished.Add(1)
	}
	return fleet.Publication{Data: data, TTL: ttl}, ok
}

// Keep puts what r has loaded into the local tier before the flight ends, so that the next Get finds
// it there. The run's mark is older than the read that brought the value, so an invalidation in
// between drops it. Values that Warm loads go to Redis only: no caller wants them yet, and they would
// push out values that are read.
func (o owner[K, V]) Keep(r *rebuild.Run, until rebuild.Until) (stands bool) {
	if r.Purpose != rebuild.Warm || !o.c.fleet.Shared() {
		o.fill(r, until)
	}
	return !o.c.values.cleared(loadedBy[V](r).entry)
}

func (o owner[K, V]) fill(r *rebuild.Run, until rebuild.Until) {
	loaded, now, longest := loadedBy[V](r), time.Now(), time.Duration(math.MaxInt64)
	e := loaded.entry
	loaded.lagging = o.c.o.ReplicaLag > 0 && (until.Unconfirmed || !until.Ends.IsZero())
	if until.Unconfirmed {
		longest = maxUnconfirmed
	}
	if r.Loaded.Size == 0 {
		_, r.Loaded.Size, _, _ = o.c.values.format.encode(r.ID, e)
	}
	if !until.Ends.IsZero() {
		short := *e
		longest = min(longest, until.Ends.Sub(now))
		short.expires, short.hard = min(e.expires, now.Add(longest).UnixMilli()), true
		e = &short
	}
	r.Kept = o.c.local.keep(tier.Mark(r.Mark), subjectOf[K](r).key, r.ID, e, r.Loaded.Size, longest, now)
}

// Current reports whether the local tier would give the answer of r to a caller who comes now. If
// so, callers who joined after the decision may have that answer too. With a negative DistrustTTL
// the local tier answers nobody while messages do not arrive. The local tier does not decide for
// strict callers.
func (o owner[K, V]) Current(r *rebuild.Run, answer any) bool {
	c, e := o.c, answer.(*found[V]).entry
	return c.o.Local.DistrustTTL >= 0 && !subjectOf[K](r).want.strict() && tier.Mark(r.Mark) == c.local.Mark(r.ID) &&
		(e.null || !c.values.cleared(e))
}

func (o owner[K, V]) Forget(id string) { o.c.writer.forgetHere([]string{id}) }

func (o owner[K, V]) Drop(ctx context.Context, ids []string) error {
	return o.c.writer.invalidate(flight.Detached(ctx), ids)
}

// beginRebuild calls Hooks.Rebuild for a run that Redis had no value for.
func (o owner[K, V]) beginRebuild(ctx context.Context, r *rebuild.Run) (context.Context, func(any, error)) {
	ctx, done := o.c.begin(ctx, o.c.hooks.Rebuild, Op{Key: r.ID, Keys: 1, Background: r.Class() == background})
	return ctx, func(answer any, err error) {
		if errors.Is(err, rebuild.ErrElsewhere) {
			err = nil
		}
		brought, _ := answer.(*found[V])
		done(Outcome{Err: err, Load: brought.loadContext()})
	}
}

// beginLeaseWait calls Hooks.LeaseWait for a run that waits for another process.
func (o owner[K, V]) beginLeaseWait(ctx context.Context, r *rebuild.Run) (over func()) {
	began := time.Now()
	_, done := o.c.begin(ctx, o.c.hooks.LeaseWait, Op{Key: r.ID, Keys: 1})
	return func() {
		o.c.times.leaseWait.add(&latencies, time.Since(began))
		done(Outcome{})
	}
}
