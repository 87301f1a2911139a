package cache

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// adder is what a Filter has that learns of new keys, as bloom.Filter does.
type adder interface {
	Add(ctx context.Context, ids ...string) error
}

// ensurer is what a Filter has that learns of keys which it may know already.
type ensurer interface {
	Ensure(ctx context.Context, ids ...string) error
}

// rebuilder is what a Filter has that can be filled anew, as bloom.Filter does.
type rebuilder interface {
	Rebuild(ctx context.Context, ids iter.Seq2[string, error]) error
}

// RebuildFilter fills Options.Filter anew from keys, which must yield all keys that exist,
// and ends with the first error that they yield. It makes the ids as the cache does: a
// filter that was filled with others denies keys that exist. The rest is as for the
// filter's own Rebuild, bloom.Filter.Rebuild for example, whose errors it returns: when to
// call it, what else runs meanwhile, and how long it waits. A filter without that method
// is an error. RebuildFilter also returns ErrInvalidKey and ErrClosed.
func (c *Cache[K, V]) RebuildFilter(ctx context.Context, keys iter.Seq2[K, error]) error {
	if c.closed() {
		return ErrClosed
	}
	filter, ok := c.o.Filter.(rebuilder)
	if !ok {
		return errors.New("cache: RebuildFilter: Options.Filter is nil or has no method Rebuild")
	}
	return c.rebuildFilter(func(ids iter.Seq2[string, error]) error { return filter.Rebuild(ctx, ids) }, keys)
}

// announce adds ids of new keys to the filter, if it is one that learns.
func (c *Cache[K, V]) announce(ctx context.Context, ids []string) error {
	filter, ok := c.o.Filter.(adder)
	if !ok {
		return nil
	}
	return c.learned(ids, filter.Add(ctx, ids...))
}

// ensure has the filter know ids of keys that may be new.
func (c *Cache[K, V]) ensure(ctx context.Context, ids []string) error {
	filter, ok := c.o.Filter.(ensurer)
	if !ok {
		return c.announce(ctx, ids)
	}
	return c.learned(ids, filter.Ensure(ctx, ids...))
}

// count has the filter know ids of keys that are new, or may be: a filter that counts would
// pass over the new ones among those that look held.
func (c *Cache[K, V]) count(ctx context.Context, ids []string) error {
	if _, ok := c.counting(ctx); ok {
		return c.announce(ctx, ids)
	}
	return c.ensure(ctx, ids)
}

func (c *Cache[K, V]) learned(ids []string, err error) error {
	switch {
	case err == nil:
		return nil
	case c.o.FilterBestEffort:
		c.log.Error("the filter has not learned of a key, and may deny it until its next Rebuild", logonce.Name("key", ids[0]), "error", err)
		return nil
	}
	return fmt.Errorf("cache: filter: %w", err)
}

// doubtFor is for how long a filter may deny a key that exists, because it learns of the
// Adds of other processes with a delay.
const doubtFor = 5 * time.Second

// compareKept is [Cache.compareFilter] for a key that the filter has denied, if this process
// has kept a value of it that is within its TTL.
func (c *Cache[K, V]) compareKept(ctx context.Context, key K, id string) {
	if e := c.local.Kept(key); e != nil && !e.past(time.Now()) {
		c.compareFilter(ctx, id)
	}
}

// compareFilter is called with the id of a key that exists: it was just loaded or Set,
// or this process has its value. A filter that denies it, now and doubtFor later, was filled
// with ids that are not those of the cache, or from a scan that has missed rows. Then keys
// that exist are not found, and nobody would be told. One id at a time is looked at.
func (c *Cache[K, V]) compareFilter(ctx context.Context, id string) {
	if c.o.Filter == nil || c.o.Filter.MayContain(ctx, id) || !c.doubting.CompareAndSwap(false, true) {
		return
	}
	if !c.loading.begin() { // closed
		return
	}
	go contain.Call(func() error {
		wait.Sleep(c.closing, doubtFor)
		if !c.closed() && !c.o.Filter.MayContain(c.closing, id) {
			c.counts.filterWrong.Add(1)
			c.log.Error("the filter denies a key that exists: fill it anew, with ids as RebuildFilter makes them", logonce.Name("key", id))
		}
		return nil
	}, func(error) { // of the user's filter, which panics in the next Get too
		c.doubting.Store(false)
		c.loading.end()
	})
}
