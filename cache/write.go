package cache

import (
	"context"
	"errors"
	"fmt"
)

// adder is what a Filter has that learns of new keys, as bloom.Filter does.
type adder interface {
	Add(ctx context.Context, ids ...string) error
}

// Set publishes a value that the source already holds. It ends every lease of key, so
// that no rebuild under way overwrites the value. Of two writers who Set at the same
// time the later one stays, which need not be the one whose value the source kept:
// where writers compete, use Write or Invalidate. It returns ErrInvalidKey,
// ErrClosed, the error of a ctx that had ended already, that of the filter, the
// codec's, or ErrUnavailable. A value that the codec does not take, or that is over
// Options.MaxValue, is not stored; what was there before is dropped.
func (c *Cache[K, V]) Set(ctx context.Context, key K, value V) error {
	ids, err := c.check(ctx, key)
	if err != nil {
		return err
	}
	if err := c.announce(ctx, ids); err != nil {
		return err
	}
	e := c.newEntry(key, value, 0)
	data, ttl, err := c.format.encode(ids[0], e)
	if err == nil {
		err = c.fleet.Set(ctx, ids[0], data, ttl)
	} else { // the source has another value than Redis all the same
		err = errors.Join(err, c.fleet.Invalidate(ctx, ids...))
	}
	// With Redis, another process may have invalidated the value already: the
	// local tier fills from Redis, which knows the order.
	c.forgetLocal(ids)
	if err == nil && len(data) > 0 && !c.fleet.Shared() {
		if c.source.Clone != nil {
			e.value = c.source.Clone(value) // the caller may go on to change its own
		}
		c.local.Put(ids[0], key, e, len(data), min(e.ttl(), c.o.Local.TTL))
	}
	return named(err)
}

// Invalidate drops keys after their write has committed. When it returns nil, no
// Get that starts afterwards, in any process, takes from Redis or from a rebuild
// under way what was there before; local tiers of other processes follow as soon
// as the message arrives. An error matches ErrInvalidKey, ErrClosed or the error of
// a ctx that had ended already, and then nothing was done, or ErrUnavailable. What is
// not confirmed is tried again in the background until it is; until then this process
// takes the keys neither from Redis nor puts them there. As the write has committed,
// ctx should not be one that ends when the client hangs up.
func (c *Cache[K, V]) Invalidate(ctx context.Context, keys ...K) error {
	ids, err := c.check(ctx, keys...)
	if err != nil {
		return err
	}
	return c.forget(ctx, ids, func(ctx context.Context) error { return c.fleet.Invalidate(ctx, ids...) })
}

// Write runs tx, which changes keys in the source, so that no reader keeps what
// was there before: it tells the filter, closes the keys to publication, runs tx,
// and invalidates. Readers meanwhile load and do not publish. Should the process
// die in tx, the keys open again after Options.Rebuild.Hold.
//
// It returns the error of tx, and invalidates all the same, because a transaction
// that reports failure may have committed; so too when tx panics and when ctx ends
// meanwhile. Before tx runs, it may return ErrInvalidKey, ErrClosed, the error of
// ctx, or that of the filter. If the invalidation is not confirmed, the error
// matches ErrUnavailable; then tx may well have succeeded. Redis out of reach does
// not keep tx from running.
func (c *Cache[K, V]) Write(ctx context.Context, keys []K, tx func(context.Context) error) (err error) {
	if tx == nil {
		return errors.New("cache: Write needs a tx")
	}
	ids, err := c.check(ctx, keys...)
	if err != nil {
		return err
	}
	if err := c.announce(ctx, ids); err != nil {
		return err
	}
	end, holdErr := c.fleet.Hold(ctx, ids...)
	if holdErr != nil {
		c.log.Warn("a write goes on without a hold on its keys", "error", named(holdErr))
	}
	c.forgetLocal(ids)
	defer func() {
		err = errors.Join(err, c.forget(context.WithoutCancel(ctx), ids, end))
	}()
	return tx(ctx)
}

// Announce says that keys are about to exist: they go into the filter, and what
// is known of their absence is dropped. Call it before the row commits. A reader
// who asks between Announce and the commit may learn once more that a key does not
// exist, for at most Options.NullTTL; Write excludes that. Errors are those of
// Invalidate and the filter's.
func (c *Cache[K, V]) Announce(ctx context.Context, keys ...K) error {
	ids, err := c.check(ctx, keys...)
	if err != nil {
		return err
	}
	if err := c.announce(ctx, ids); err != nil {
		return err
	}
	return c.forget(ctx, ids, func(ctx context.Context) error { return c.fleet.Invalidate(ctx, ids...) })
}

// check returns the ids of all keys, or why nothing may be done.
func (c *Cache[K, V]) check(ctx context.Context, keys ...K) ([]string, error) {
	if c.closing.Err() != nil {
		return nil, ErrClosed
	}
	ids := make([]string, len(keys))
	for i, key := range keys {
		id, err := c.id(key)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, ctx.Err()
}

// announce adds ids to the filter, if it is one that learns.
func (c *Cache[K, V]) announce(ctx context.Context, ids []string) error {
	filter, ok := c.o.Filter.(adder)
	if !ok {
		return nil
	}
	if err := filter.Add(ctx, ids...); err != nil {
		return fmt.Errorf("cache: filter: %w", err)
	}
	return nil
}

// forget invalidates ids, in Redis first: the other way round, a reader in between
// could fill the local tier from Redis again.
func (c *Cache[K, V]) forget(ctx context.Context, ids []string, invalidate func(context.Context) error) error {
	err := invalidate(ctx)
	c.forgetLocal(ids)
	return named(err)
}
