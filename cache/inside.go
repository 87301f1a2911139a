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
	i := inspector[K, V]{c}
	return inside.Cache{
		Breaker: c.o.Breaker, Filter: c.o.Filter,
		Inspect: i.inspect, TopKeys: i.topKeys,
		Invalidate: i.byTexts(c.writer.invalidate), Expire: i.byTexts(c.writer.expire), Refresh: i.refreshTexts, Announce: i.byTexts(c.writer.announce),
		Audit: i.audited(),
	}
}

// An inspector looks at a cache for those who show, administer and audit it. Nothing on a read path
// calls it.
type inspector[K comparable, V any] struct{ c *Cache[K, V] }

// byTexts returns a function that calls do with the ids of keys that are given as texts.
func (i inspector[K, V]) byTexts(do func(ctx context.Context, ids []string) error) func(ctx context.Context, texts []string) error {
	return func(ctx context.Context, texts []string) error {
		if i.c.closed() {
			return ErrClosed
		}
		ids := make([]string, len(texts))
		for at, text := range texts {
			_, id, _, err := i.c.naming.parse(text)
			if err != nil {
				return err
			}
			ids[at] = id
		}
		return do(context.WithoutCancel(ctx), ids)
	}
}

func (i inspector[K, V]) refreshTexts(ctx context.Context, texts []string) error {
	keys := make([]K, len(texts))
	for at, text := range texts {
		key, _, known, err := i.c.naming.parse(text)
		if err != nil {
			return err
		}
		if !known {
			return inside.ErrNoKey
		}
		keys[at] = key
	}
	return i.c.Refresh(ctx, keys...)
}

func (i inspector[K, V]) topKeys(n int) []inside.HotKey {
	var keys []inside.HotKey
	for _, hot := range i.c.local.TopKeys(n) {
		if id, err := i.c.naming.id(hot.Key); err == nil { // otherwise it is not a key of this cache
			keys = append(keys, inside.HotKey{ID: id, Share: hot.Share, Error: hot.Error})
		}
	}
	return keys
}

func (i inspector[K, V]) inspect(ctx context.Context, id string) (inside.Inspection, error) {
	key, id, known, err := i.c.naming.parse(id)
	if err != nil {
		return inside.Inspection{}, err
	}
	found := inside.Inspection{ID: id, LocalUnknown: !known && i.c.local.Cache != nil}
	now := time.Now()
	if known {
		found.Local = i.standingLocally(key, now)
	}
	if i.c.o.Filter != nil {
		if found.Filter = "absent"; i.c.filter.exists(ctx, id) {
			found.Filter = "may exist"
		}
	}
	found.Loading, found.HeldError = i.c.flights.Peek(id)
	there, err := i.c.fleet.Inspect(ctx, id)
	found.RedisKey, found.Leased, found.LeaseLeft, found.Awaited = there.Key, there.Leased, there.LeaseLeft, there.Awaited
	found.Holds, found.Foreign = there.Holds, there.Foreign
	found.Outage, found.Unconfirmed = there.Outage, there.Unconfirmed
	if len(there.Value.Data) > 0 {
		found.Redis = &inside.Standing{State: "dead", Left: there.Left, Bytes: len(there.Value.Data)}
		if e, ok := i.c.values.format.decode(id, there.Value.Data); ok && !there.Value.TooLong {
			i.describe(found.Redis, e, now)
		}
	}
	return found, named(err)
}

func (i inspector[K, V]) standingLocally(key K, now time.Time) *inside.Standing {
	held, ok := i.c.local.Inspect(key)
	if !ok {
		return nil
	}
	s := &inside.Standing{State: "dead", Null: held.Null, Age: held.Age, Left: held.Left, Bytes: held.Bytes}
	if held.Value != nil {
		i.describe(s, held.Value, now)
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
func (i inspector[K, V]) describe(s *inside.Standing, e *entry[V], now time.Time) {
	s.Null, s.Age, s.TTL = e.null, e.age(now), e.left(now)
	if !e.null {
		s.Value = i.c.values.own(e)
	}
	if !i.c.values.cleared(e) {
		s.State = i.c.values.of(e.life, now, 1).String()
	}
}

// audited returns what package audit needs to find writers that forget to invalidate.
func (i inspector[K, V]) audited() inside.Audit[K, V] {
	return inside.Audit[K, V]{
		ReplicaLag: i.c.o.ReplicaLag, ID: i.c.naming.id, Closing: i.c.closing, Log: i.c.log, Counts: &i.c.counts.audit, Shadow: &i.c.counts.shadow,
		Stale: func(age time.Duration) { i.c.counts.audit.Stale.Add(1); i.c.times.audit.add(&ages, age) },
		Sample: func() (pick func() (K, bool), stop func()) {
			s := &inside.Sample[K]{}
			if !i.c.sample.CompareAndSwap(nil, s) {
				return nil, nil
			}
			return s.Pick, func() { i.c.sample.CompareAndSwap(s, nil) }
		},
		Look:       i.lookApart,
		Served:     i.servedApart,
		Absent:     func(v V, err error) bool { return i.c.loader.isAbsent(&v, err) },
		Clone:      func(v V) V { return i.c.values.cloned(&v) },
		Encode:     func(v V) ([]byte, error) { return i.c.values.format.marshal(v) },
		Invalidate: i.c.Invalidate,
		Ledger:     i.ledger,
	}
}

// lookApart reads the value that is served for key and then the source. It shares neither with
// other callers.
func (i inspector[K, V]) lookApart(ctx context.Context, key K) (look inside.Look[V], err error) {
	if look, err = i.servedApart(ctx, key); err != nil || !look.There {
		return look, err
	}
	source, err := i.fromSource(ctx, key, look.ID)
	if err != nil {
		return inside.Look[V]{ID: look.ID}, named(err)
	}
	if look.Gone = source.null; !look.Gone {
		look.Source = i.c.values.own(source)
	}
	return look, nil
}

// servedApart is lookApart without the source.
func (i inspector[K, V]) servedApart(ctx context.Context, key K) (inside.Look[V], error) {
	return i.lookAt(key, func(id string) (*entry[V], any, error) { return i.served(ctx, key, id) })
}

// lookAt returns what served finds for key.
func (i inspector[K, V]) lookAt(key K, served func(id string) (e *entry[V], stored any, err error)) (look inside.Look[V], err error) {
	if look.ID, err = i.c.naming.id(key); err != nil {
		return look, err
	}
	e, stored, err := served(look.ID)
	if err != nil || e == nil {
		return look, named(err)
	}
	look.There, look.Stored = true, stored
	if look.Null = e.null; !look.Null {
		look.Cached, look.Age = i.c.values.own(e), e.age(time.Now())
	}
	return look, nil
}

// served returns the value or null that a Get would return now, with a stored that differs from
// that of any later value. It returns nil if Get would load, or return an old value.
func (i inspector[K, V]) served(ctx context.Context, key K, id string) (e *entry[V], stored any, err error) {
	if e, stored, counts := i.servedHere(key); counts {
		return e, stored, nil
	}
	if !i.c.filter.exists(ctx, id) {
		return i.c.values.absent, "filter", nil
	}
	return i.servedInRedis(ctx, id)
}

// servedHere is served for the local tier alone. counts reports that it has something in its life, which
// need not be an answer: a Clear may have ended it.
func (i inspector[K, V]) servedHere(key K) (e *entry[V], stored any, counts bool) {
	held, ok := i.c.local.Inspect(key)
	switch {
	case !ok || held.Left == 0:
		return nil, nil, false
	case held.Null:
		return i.c.values.absent, held.Filled, true
	}
	e, stored = i.fresh(held.Value)
	return e, stored, true
}

// servedInRedis is served for Redis alone.
func (i inspector[K, V]) servedInRedis(ctx context.Context, id string) (e *entry[V], stored any, err error) {
	value := i.c.fleet.GetOne(ctx, id)
	if value.Err != nil || len(value.Data) == 0 {
		return nil, nil, value.Err
	}
	e, ok := i.c.values.format.decode(id, value.Data)
	if !ok {
		return nil, nil, nil
	}
	e, stored = i.fresh(e)
	return e, stored, nil
}

// fresh returns e if it is an answer now, and what its bytes are known by.
func (i inspector[K, V]) fresh(e *entry[V]) (*entry[V], any) {
	if e.expired || e.past(time.Now()) || i.c.values.cleared(e) {
		return nil, nil
	}
	return e, e.identity()
}

// fromSource loads key without sharing the load with other callers.
func (i inspector[K, V]) fromSource(ctx context.Context, key K, id string) (*entry[V], error) {
	ctx, stop := i.c.engine.LoadContext(ctx)
	defer stop()
	place, err := i.c.breaker.Acquire(ctx, background)
	if err != nil {
		return nil, i.c.engine.LoadError(ctx, err)
	}
	defer place.Release()
	r := &rebuild.Run{Subject: &subject[K]{key: key}, ID: id, Purpose: rebuild.Refresh}
	i.c.loader.load(ctx, place, []*rebuild.Run{r})
	return loadedBy[V](r).entry, r.Loaded.Err
}
