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

// Set stores a value that the source already has. It ends every lease of key, so that no running
// rebuild overwrites the value. If two writers Set a key at the same time, the later value stays,
// which need not be the one that the source has kept: where writers compete, use Write or
// Invalidate. A nil pointer says that the source does not have the key, as it does from a
// [Loader]: Get then returns ErrNotFound for Options.NullTTL.
//
// Set does its work even if ctx has ended, as a request's context does when its client hangs up.
// It takes RedisTimeout at most for each of its two round trips, plus the filter's time. If it
// returns ErrInvalidKey, ErrClosed or the filter's error, it has done nothing; otherwise the
// error is the codec's, or ErrNotInvalidated. A value that the codec refuses, or that is over
// Options.MaxValue, is not stored, and the previous value is dropped.
func (c *Cache[K, V]) Set(ctx context.Context, key K, value V) error {
	return c.setAll(ctx, []K{key}, func(int) V { return value })
}

// SetMany sets several values, as [Cache.Set] does, in two round trips to each Redis node for
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
	if err := c.filter.ensure(ctx, ids); err != nil {
		return err
	}
	entries := make([]*entry[V], len(keys))
	publications := make([]fleet.Publication, len(keys))
	sizes := make([]int, len(keys))
	var unfit []error
	for i, key := range keys {
		entries[i] = c.setEntry(ctx, key, ids[i], value(i))
		data, size, ttl, err := c.values.format.encode(ids[i], entries[i])
		if err != nil { // the source has changed nevertheless, so the value in Redis must go
			unfit, data, size = append(unfit, named(err)), nil, 0
		}
		sizes[i] = size
		publications[i] = fleet.Publication{Lease: fleet.Lease{ID: ids[i]}, Data: data, TTL: ttl}
	}
	err = c.writer.change(ctx, "set", ids, func(ctx context.Context) error {
		if !c.fleet.Shared() {
			c.setHere(ctx, ids, keys, entries, sizes)
			return nil
		}
		err := c.fleet.Set(ctx, publications...)
		// Another process may have invalidated the value already: the local tier fills
		// from Redis, where the order is known.
		c.writer.forgetHere(ids)
		return err
	})
	return errors.Join(append(unfit, err)...)
}

// setEntry makes an entry for a value that the source has now. A nil pointer makes a null.
func (c *Cache[K, V]) setEntry(ctx context.Context, key K, id string, value V) *entry[V] {
	epoch := c.fleet.SetEpoch()
	if isNil(&value) {
		null := &entry[V]{life: life{null: true, epoch: epoch}}
		null.stamp(time.Now(), jittered(c.o.NullTTL, c.o.Jitter), 0)
		return null
	}
	c.filter.compare(ctx, id)
	return c.loader.newEntry(key, value, epoch, 0)
}

// setHere sets values in the local tier, for a cache without Redis. An invalidation may come
// between any two of its steps: it takes the lease away or overtakes the mark.
func (c *Cache[K, V]) setHere(ctx context.Context, ids []string, keys []K, entries []*entry[V], encoded []int) {
	leases := make([]fleet.Publication, len(ids))
	for i, grant := range c.fleet.Claim(ctx, ids...) {
		leases[i].Lease = grant.Lease
	}
	failpoint.At("claimed")
	c.writer.forgetHere(ids)
	marks := make([]tier.Mark, len(ids))
	for i, id := range ids {
		marks[i] = c.local.Mark(id)
	}
	for i, outcome := range c.fleet.Replace(ctx, leases...) {
		e := entries[i]
		if !outcome.Published || encoded[i] == 0 || c.values.cleared(e) {
			continue
		}
		if c.values.clone != nil && !e.null {
			e.value = c.values.clone(e.value) // the caller may change its own value later
		}
		failpoint.At("set")
		c.local.keep(marks[i], keys[i], ids[i], e, encoded[i], e.ttl(), time.Now())
	}
}

// Invalidate drops keys after their write has committed. When it returns nil, no Get that starts
// afterwards, in any process, gets an older value from Redis or from a running rebuild; local
// tiers of other processes follow as soon as the message arrives. If the error matches
// ErrInvalidKey or ErrClosed, nothing was done. Otherwise it is ErrNotInvalidated: levee repeats
// unconfirmed invalidations in the background until Redis confirms them, and until then this
// process neither reads the keys from Redis nor stores them there.
//
// Because the write has committed, Invalidate does its work even if ctx has ended, as a request's
// context does when its client hangs up. It waits for RedisTimeout at most, and for as long again
// if it has to wait for its turn.
func (c *Cache[K, V]) Invalidate(ctx context.Context, keys ...K) error {
	ids, err := c.check(keys...)
	if err != nil {
		return err
	}
	return c.writer.invalidate(context.WithoutCancel(ctx), ids)
}

// Expire invalidates keys as [Cache.Invalidate] does, but keeps their old values as a fallback:
// for rows that change while the source is slow or fails. The next reader loads. The old value is
// served, marked stale, only if that load fails or is refused, takes longer than SoftTimeout, or
// the caller's own deadline comes, and for StaleIfError after the Expire at most, as a value past
// its TTL is. So the guarantee of Invalidate holds for values that are not marked. A later
// Invalidate, Clear or ClearTags ends the old value.
//
// Expire drops nulls, and every old value that Redis does not keep: that of an [Entry] that is
// Hard, all values if StaleIfError is negative, and all values of a cache without Redis. It
// returns the errors of Invalidate. Keys whose expiry Redis does not confirm are invalidated in
// the background.
func (c *Cache[K, V]) Expire(ctx context.Context, keys ...K) error {
	ids, err := c.check(keys...)
	if err != nil {
		return err
	}
	return c.writer.expire(context.WithoutCancel(ctx), ids)
}

// Announce says that keys are about to exist: it adds them to the filter (a counting filter
// counts them) and drops their nulls. Call it before the row commits. A reader that comes between
// Announce and the commit may find once more that a key does not exist, and that null lives for
// Options.NullTTL at most; [Also], in a Write, excludes that. Announce returns the errors of
// Invalidate and of the filter, after which the row must not commit. After ErrNotInvalidated the
// row may commit, because the filter knows the keys.
func (c *Cache[K, V]) Announce(ctx context.Context, keys ...K) error {
	ids, err := c.check(keys...)
	if err != nil {
		return err
	}
	return c.writer.announce(context.WithoutCancel(ctx), ids)
}

// check returns the ids of all keys, or the error for which the call may do nothing.
func (c *Cache[K, V]) check(keys ...K) ([]string, error) {
	if c.closed() {
		return nil, ErrClosed
	}
	return c.naming.ids(keys)
}

func (c *Cache[K, V]) closed() bool { return c.closing.Err() != nil }
