package cache

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/rebuild"
	"github.com/levee-go/levee/internal/tier"
)

// maxTogether is how many keys of a GetMany are read or loaded at a time. Callers that have
// joined flights of these keys wait with them for their turn.
const maxTogether = 1024

// GetMany returns the values of keys. A key that does not exist is absent from the map, and a key
// that is given twice counts once. If it fails for some keys, the error is a [*BatchError] that
// says why, and the map, which is never nil, holds the other values. GetMany returns when all
// values are there or ctx ends.
//
// For every 256 of its keys it reads Redis in one round trip to each node, and loads the missing
// keys with one call of [Source.LoadMany]; without LoadMany it calls Load for 64 keys at a time.
// It works on 1,024 keys at a time, and a key whose load hangs delays the keys after these. It
// waits for keys that other callers are reading or loading, by Get or GetMany, in this process or
// another. All guarantees of Get hold for each key.
func (c *Cache[K, V]) GetMany(ctx context.Context, keys []K) (map[K]V, error) {
	return c.getMany(ctx, keys, c.plain(ctx))
}

// FetchMany returns the values of keys as [Cache.GetMany] does, with where each came from and how
// old it is.
func (c *Cache[K, V]) FetchMany(ctx context.Context, keys []K) (map[K]Result[V], error) {
	return c.fetchMany(ctx, keys, c.plain(ctx))
}

func (c *Cache[K, V]) getMany(ctx context.Context, keys []K, w *want) (map[K]V, error) {
	values := make(map[K]V, len(keys))
	err := c.answers(ctx, keys, w, func(key K, answer found[V]) { values[key] = c.values.own(answer.entry) })
	return values, err
}

func (c *Cache[K, V]) fetchMany(ctx context.Context, keys []K, w *want) (map[K]Result[V], error) {
	results := make(map[K]Result[V], len(keys))
	err := c.answers(ctx, keys, w, func(key K, answer found[V]) { results[key] = c.result(answer, time.Now()) })
	return results, err
}

// answers calls give for each key that has an answer. give may call Clone, which is the user's.
func (c *Cache[K, V]) answers(ctx context.Context, keys []K, w *want, give func(K, found[V])) error {
	var failed BatchError[K]
	for part := range slices.Chunk(unique(keys), maxTogether) {
		c.getPart(ctx, part, w, give, &failed)
	}
	if len(failed.Causes) > 0 {
		return &failed
	}
	return nil
}

// getPart reads several keys, as read does one. The flights that it opens go through their steps
// together.
func (c *Cache[K, V]) getPart(ctx context.Context, keys []K, w *want, give func(K, found[V]), failed *BatchError[K]) {
	lookups, now := make([]lookup[K, V], 0, len(keys)), time.Now()
	each(len(keys), func(i int) { // Clone and Source.Key are the user's
		key, kind := keys[i], tier.Miss
		if w == nil {
			var e *entry[V]
			if e, kind = c.local.Get(key); kind == tier.Value && (c.local.tagClears.Load() == 0 || !c.local.overtaken(e)) {
				give(key, found[V]{entry: e, tier: TierLocal, stale: e.past(now)})
				return
			}
		}
		lookups = append(lookups, lookup[K, V]{key: key, want: w, past: kind == tier.Past})
		c.identify(&lookups[len(lookups)-1], kind)
	}, func(i int, err error) {
		if last := len(lookups) - 1; last >= 0 && lookups[last].key == keys[i] {
			lookups[last].failed(err)
			return
		}
		failed.add(keys[i], named(err))
	})
	c.lookupAll(ctx, lookups)
	c.counts.asked.Add(uint64(len(lookups)))
	c.readAll(ctx, lookups)
	c.refresh(ctx, renewed(lookups)...)
	for began := time.Now(); len(lookups) > 0; {
		if opened := c.joinAll(ctx, lookups); len(opened) > 0 {
			c.engine.Start(ctx, opened...)
		}
		lookups = c.concludeAll(ctx, lookups, began, give, failed)
	}
}

// renewed returns the lookups whose answers are to be refreshed.
func renewed[K comparable, V any](lookups []lookup[K, V]) (some []*lookup[K, V]) {
	for i := range lookups {
		if l := &lookups[i]; l.renews {
			some = append(some, l)
		}
	}
	return some
}

// concludeAll awaits and concludes several lookups, and returns those that have to join again.
func (c *Cache[K, V]) concludeAll(ctx context.Context, lookups []lookup[K, V], began time.Time, give func(K, found[V]), failed *BatchError[K]) (again []lookup[K, V]) {
	var unread []*lookup[K, V] // those that have joined a flight and read nothing
	for i := range lookups {
		if l := &lookups[i]; l.hasToRead() {
			unread = append(unread, l)
		}
	}
	each(len(lookups), func(i int) { // Clone is the user's
		l := &lookups[i]
		if len(unread) > 0 && unread[0] == l {
			unread = unread[1:]
		}
		if !c.await(ctx, l, unread, began) {
			again = append(again, *l)
			return
		}
		switch answer, err := c.conclude(ctx, l, unread); {
		case err == nil:
			give(l.key, answer)
		case !errors.Is(err, ErrNotFound):
			failed.add(l.key, err)
		}
	}, func(i int, err error) { failed.add(lookups[i].key, named(err)) })
	return again
}

// lookupAll calls lookup for several keys. It calls a filter with a MayContainMany once.
func (c *Cache[K, V]) lookupAll(ctx context.Context, lookups []lookup[K, V]) {
	var exist []bool // nil: the filter looks up each key by itself
	contain.Call(func() error {
		if filter, ok := c.o.Filter.(manyFilter); ok && len(lookups) > 1 {
			ids := make([]string, len(lookups))
			for i := range lookups {
				ids[i] = lookups[i].id
			}
			exist = filter.MayContainMany(ctx, ids)
		}
		return nil
	}, func(err error) { // the filter is the user's
		for i := range lookups {
			lookups[i].broken(err)
		}
	})
	each(len(lookups), func(i int) {
		l := &lookups[i]
		c.lookup(ctx, l, l.phase == over || exist != nil && c.filter.passes(exist[i]) || exist == nil && c.filter.exists(ctx, l.id))
	}, func(i int, err error) { lookups[i].broken(err) })
}

// readAll joins the running flights of lookups, and reads the other keys together.
func (c *Cache[K, V]) readAll(ctx context.Context, lookups []lookup[K, V]) {
	reading := make([]*lookup[K, V], 0, len(lookups))
	for i := range lookups {
		l := &lookups[i]
		if c.joinRunning(ctx, l); l.reads() {
			l.own = tried
			reading = append(reading, l)
		}
	}
	contain.Call(func() error { c.readOwn(ctx, reading...); return nil }, func(err error) {
		for _, l := range reading {
			l.broken(err)
		}
	})
}

// joinAll joins lookups to their flights, and returns runs for the flights that it opened. Up
// to 64 runs are one piece of memory.
func (c *Cache[K, V]) joinAll(ctx context.Context, lookups []lookup[K, V]) (opened []*rebuild.Run) {
	var spare []rebuild.Run
	for i := range lookups {
		l := &lookups[i]
		if !l.reads() {
			continue
		}
		if len(spare) == 0 {
			spare = make([]rebuild.Run, min(len(lookups)-i, 64))
		}
		if r := c.join(ctx, l, &spare[0]); r != nil {
			opened, spare = append(opened, r), spare[1:]
		}
	}
	return opened
}

// each calls do with the numbers from 0 to n-1. do may call functions of the user's: if it
// panics, each calls failed with the error and continues with the next number.
func each(n int, do func(i int), failed func(i int, err error)) {
	for i := 0; i < n; i++ {
		contain.Call(func() error {
			for ; i < n; i++ {
				do(i)
			}
			return nil
		}, func(err error) {
			if err != nil {
				failed(i, err)
			}
		})
	}
}

func (e *BatchError[K]) add(key K, err error) {
	if e.Causes == nil {
		e.Causes = map[K]error{}
	}
	e.Causes[key] = err
}

// unique returns keys without repetitions, in their order.
func unique[K comparable](keys []K) []K {
	seen := make(map[K]struct{}, len(keys))
	for _, key := range keys {
		seen[key] = struct{}{}
	}
	if len(seen) == len(keys) {
		return keys
	}
	first := make([]K, 0, len(seen))
	for _, key := range keys {
		if _, ok := seen[key]; ok {
			delete(seen, key)
			first = append(first, key)
		}
	}
	return first
}
