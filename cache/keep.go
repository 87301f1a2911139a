package cache

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/mutexrebuild"
)

// staleLife is for how long the local tier answers with a value past its TTL
// before somebody looks for a newer one. It takes from Redis what all the readers
// of a value would ask while one of them refreshes it.
const staleLife = time.Second

// keep puts what a flight brought into the local tier, once per flight. The mark
// is older than the read that brought it, so an invalidation in between drops it.
func (c *Cache[K, V]) keep(key K, id string, got mutexrebuild.Result[*entry[V]]) {
	mark, ok := got.Mark.(localcache.Mark)
	if !ok || !got.First || got.Held || got.Bytes == 0 {
		return
	}
	failpoint.At("keep")
	e, now := got.Value, time.Now()
	left := e.left(now)
	if e.past(now) {
		left = staleLife
	}
	life := jittered(min(left, c.o.Local.TTL), c.o.Jitter)
	if e.null {
		if taken := c.local.FillNull(mark, key, life); !taken {
			c.dropKept(key, id)
		}
		return
	}
	c.local.Fill(mark, key, e, got.Bytes, life)
}

// dropKept ends a value that is known not to exist any more, and that no null
// stands before.
func (c *Cache[K, V]) dropKept(key K, id string) {
	if _, ok := c.local.Kept(key); ok {
		c.local.Delete(id)
	}
}

// refresh renews a value in the background, at most once in all processes, while
// it still answers.
func (c *Cache[K, V]) refresh(ctx context.Context, key K, id string, got mutexrebuild.Result[*entry[V]]) {
	c.rebuild.Refresh(ctx, id, got, func(ctx context.Context, _ bool) (*entry[V], error) {
		return c.ask(ctx, key, id, c.breaker.DoBackground)
	}, func(new mutexrebuild.Result[*entry[V]]) { c.keep(key, id, new) })
}

// keptWhileAway is what this process still has of a key while there is no Redis to
// ask, nil if that is not good enough. Reading it again from the source is left to
// the background: all processes are doing the same.
func (c *Cache[K, V]) keptWhileAway(ctx context.Context, key K, id string) *entry[V] {
	e, ok := c.local.Kept(key)
	if !ok || c.windows.stale == 0 || c.stateOf(e) > stale {
		return nil
	}
	if e.age(time.Now()) >= staleLife { // the local tier does not show at once what it was given
		c.refresh(ctx, key, id, mutexrebuild.Result[*entry[V]]{})
	}
	return e
}

// keptInstead is what this process still has of a key that could not be read, nil
// if there is nothing or err is none of the source's.
func (c *Cache[K, V]) keptInstead(key K, err error) *entry[V] {
	if errors.Is(err, mutexrebuild.ErrClosed) || errors.Is(err, mutexrebuild.ErrReentrant) {
		return nil
	}
	e, ok := c.local.Kept(key)
	if !ok || c.stateOf(e) > spare || !e.past(time.Now()) && c.windows.spare == 0 {
		return nil
	}
	return e
}

// doubtful reports whether a kept value that answers counts as stale: it is past its
// TTL, or another process may have changed it unheard.
func (c *Cache[K, V]) doubtful(e *entry[V]) bool { return c.rebuild.Shared() || e.past(time.Now()) }

// decode reads what stands in Redis and judges its state.
func (c *Cache[K, V]) decode(id string, data []byte) (*entry[V], mutexrebuild.Condition) {
	e, ok := c.format.decode(id, data)
	if !ok {
		c.journal.Warn("what stands in redis is no value of this cache, and is replaced", logonce.Name("key", id), "bytes", len(data))
		return nil, mutexrebuild.Unfit
	}
	return e, c.stateOf(e).condition()
}
