package cache

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/tier"
)

// Set publishes a value that the source already holds. It ends every lease of key, so
// that no rebuild under way overwrites the value. Of two writers who Set at the same
// time the later one stays, which need not be the one whose value the source kept:
// where writers compete, use Write or Invalidate. A nil pointer says that the source does
// not have the key, as that of a [Loader] does: Get returns ErrNotFound for
// Options.NullTTL.
//
// It does its work also when ctx has ended, as that of a request does whose client hangs
// up, and takes RedisTimeout at most for each of its two round trips, beside the filter's
// time. It returns ErrInvalidKey, ErrClosed or the error of the filter, and then nothing was
// done; the codec's; or ErrNotInvalidated. A value that the codec does not take, or that is
// over Options.MaxValue, is not stored; what was there before is dropped.
func (c *Cache[K, V]) Set(ctx context.Context, key K, value V) error {
	return c.setAll(ctx, []K{key}, func(int) V { return value })
}

// SetMany is [Cache.Set] for several values, in two round trips to each Redis node for
// every 128 of them. If it returns an error, some of them may have been set.
func (c *Cache[K, V]) SetMany(ctx context.Context, values map[K]V) error {
	keys := slices.Collect(maps.Keys(values))
	return c.setAll(ctx, keys, func(i int) V { return values[keys[i]] })
}

func (c *Cache[K, V]) setAll(ctx context.Context, keys []K, value func(int) V) error {
	ids, err := c.check(keys...)
	if err != nil || len(ids) == 0 {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := c.ensure(ctx, ids); err != nil {
		return err
	}
	entries := make([]*entry[V], len(keys))
	publications := make([]fleet.Publication, len(keys))
	sizes := make([]int, len(keys))
	var unfit []error
	for i, key := range keys {
		entries[i] = c.setEntry(ctx, key, ids[i], value(i))
		data, size, ttl, err := c.format.encode(ids[i], entries[i])
		if err != nil { // the source has another value than Redis all the same
			unfit, data, size = append(unfit, named(err)), nil, 0
		}
		sizes[i] = size
		publications[i] = fleet.Publication{Lease: fleet.Lease{ID: ids[i]}, Data: data, TTL: ttl}
	}
	err = c.change(ctx, "set", ids, func(ctx context.Context) error {
		if !c.fleet.Shared() {
			c.setHere(ctx, ids, keys, entries, sizes)
			return nil
		}
		err := c.fleet.Set(ctx, publications...)
		// Another process may have invalidated the value already: the local tier fills
		// from Redis, which knows the order.
		c.forgetLocal(ids)
		return err
	})
	return errors.Join(append(unfit, err)...)
}

// setEntry makes an entry of what the source holds now, by the rule of a Loader: a nil
// pointer is a key that it does not have.
func (c *Cache[K, V]) setEntry(ctx context.Context, key K, id string, value V) *entry[V] {
	epoch := c.fleet.LoadEpoch()
	if isNil(&value) {
		null := &entry[V]{life: life{null: true, epoch: epoch}}
		null.stamp(time.Now(), jittered(c.o.NullTTL, c.o.Jitter), 0)
		return null
	}
	c.compareFilter(ctx, id)
	return c.newEntry(key, value, epoch, 0)
}

// setHere sets values without Redis, in the local tier alone. An invalidation may come
// between any two of its steps: it takes the lease away, or overtakes the mark.
func (c *Cache[K, V]) setHere(ctx context.Context, ids []string, keys []K, entries []*entry[V], encoded []int) {
	leases := make([]fleet.Publication, len(ids))
	for i, grant := range c.fleet.Claim(ctx, ids...) {
		leases[i].Lease = grant.Lease
	}
	failpoint.At("claimed")
	c.forgetLocal(ids)
	marks := make([]tier.Mark, len(ids))
	for i, id := range ids {
		marks[i] = c.local.Mark(id)
	}
	for i, outcome := range c.fleet.Replace(ctx, leases...) {
		e := entries[i]
		if !outcome.Published || encoded[i] == 0 || c.cleared(e) {
			continue
		}
		if c.source.Clone != nil && !e.null {
			e.value = c.source.Clone(e.value) // the caller may go on to change its own
		}
		failpoint.At("set")
		c.keep(marks[i], keys[i], ids[i], e, encoded[i], e.ttl(), time.Now())
	}
}

// Invalidate drops keys after their write has committed. When it returns nil, no
// Get that starts afterwards, in any process, takes from Redis or from a rebuild
// under way what was there before; local tiers of other processes follow as soon
// as the message arrives. An error matches ErrInvalidKey or ErrClosed, and then nothing was
// done, or ErrNotInvalidated. What is not confirmed is tried again in the background until
// it is; until then this process takes the keys neither from Redis nor puts them there.
//
// The write has committed, so Invalidate does its work also when ctx has ended, as that of
// a request does whose client hangs up. It waits for RedisTimeout at most, and for as long
// again if it has to wait for its turn.
func (c *Cache[K, V]) Invalidate(ctx context.Context, keys ...K) error {
	ids, err := c.check(keys...)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	return c.invalidate(ctx, ids)
}

// Expire is [Cache.Invalidate] that keeps the old values as a fallback: for rows
// that change while the source is slow or fails. The next reader loads. Only if that fails or is
// refused, takes longer than SoftTimeout, or the caller's own deadline comes, is the old value
// served, marked stale, and no later than StaleIfError after the Expire: as a value past its TTL does. So
// what Invalidate promises holds for answers that are not marked. A later Invalidate, Clear
// or ClearTags ends the old value.
//
// Nulls are dropped, and so is what no process has in Redis: the old value of an [Entry] that is
// Hard, everything with a negative StaleIfError, and in a cache without Redis. Errors are those
// of Invalidate. What is not confirmed is invalidated in the background.
func (c *Cache[K, V]) Expire(ctx context.Context, keys ...K) error {
	ids, err := c.check(keys...)
	if err != nil {
		return err
	}
	return c.expire(context.WithoutCancel(ctx), ids)
}

func (c *Cache[K, V]) expire(ctx context.Context, ids []string) error {
	return c.forget(ctx, ids, func(ctx context.Context) error { return c.fleet.Expire(ctx, c.windows.fallback, ids...) })
}

// Announce says that keys are about to exist: they go into the filter, a counting one
// counts them, and what is known of their absence is dropped. Call it before the row
// commits. A reader that comes between Announce and the commit may learn once more that a
// key does not exist, for at most Options.NullTTL; in a Write, [Also] does the same and
// excludes that. Errors are those of Invalidate and the filter's, after which the row must
// not commit. After ErrNotInvalidated it may: the filter knows the keys.
func (c *Cache[K, V]) Announce(ctx context.Context, keys ...K) error {
	ids, err := c.check(keys...)
	if err != nil || len(ids) == 0 {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	ctx, done := c.beginWrite(ctx, "announce", ids)
	if err = c.announce(ctx, ids); err == nil {
		err = c.invalidate(ctx, ids)
	}
	done(Outcome{Err: err})
	return err
}

// check returns the ids of all keys, or why nothing may be done.
func (c *Cache[K, V]) check(keys ...K) ([]string, error) {
	if c.closed() {
		return nil, ErrClosed
	}
	return c.ids(keys)
}

func (c *Cache[K, V]) ids(keys []K) ([]string, error) {
	ids := make([]string, len(keys))
	for i, key := range keys {
		id, err := c.id(key)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}

func (c *Cache[K, V]) invalidate(ctx context.Context, ids []string) error {
	return c.forget(ctx, ids, func(ctx context.Context) error { return c.fleet.Invalidate(ctx, ids...) })
}

// forget invalidates ids, in Redis first: the other way round, a reader in between
// could fill the local tier from Redis again.
func (c *Cache[K, V]) forget(ctx context.Context, ids []string, invalidate func(context.Context) error) error {
	err := c.change(ctx, "invalidate", ids, invalidate)
	c.forgetLocal(ids)
	return err
}

// change does what a writer waits for Redis for, and notes it. Its error is named.
func (c *Cache[K, V]) change(ctx context.Context, call string, ids []string, do func(context.Context) error) error {
	ctx, done := c.beginWrite(ctx, call, ids)
	began := time.Now()
	err := do(ctx)
	c.times.write.add(&latencies, time.Since(began))
	switch {
	case call == "hold": // whose end says so
		err = named(err)
	case err != nil:
		c.counts.notInvalidated.Add(1)
		err = notInvalidated(err)
	}
	done(Outcome{Err: err})
	return err
}
