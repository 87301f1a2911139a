package cache

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/tier"
)

// Reads are the rules of a [Reader]. They apply to its callers only: they do not change what
// other callers of the same keys get, and when. The zero value has no rules: such reads are reads
// of the cache itself.
type Reads struct {
	// MaxAge bounds how long ago the value was loaded: its load must have begun no longer than
	// MaxAge before the read did, as far as the clocks of the hosts agree. An older value is
	// loaded anew, and the new one is stored in Redis: callers with rules as strict share one
	// load in all processes, other callers get the old value at once meanwhile, and other
	// processes keep it in their memory for up to Local.TTL (Refresh notifies them). If that load
	// fails, the older value is served, marked stale. A load that begins after the read is always
	// new enough. 0: any age; negative: as Reload.
	MaxAge time.Duration
	// Reload calls the loader for this read though the value is cached: it is the strictest MaxAge, which
	// is ignored then, and callers who come before that load begins share it. A filter that denies the key
	// and the held error of such a load still answer.
	Reload bool
	// NoLoad never loads: the read returns at once what this process, the filter or Redis knows,
	// otherwise [ErrNotCached]. It waits for no load, and starts neither a load nor a refresh.
	// While Redis is out of reach, a value that this process has kept is served, marked stale.
	NoLoad bool
	// SkipLocal reads Redis, whatever the local tier holds: a read that begins after an
	// Invalidate, Write or Set of any process has returned nil sees that change. It costs a round
	// trip. While Redis is out of reach, the loader is called. A cache without Redis has no other
	// process to follow, and ignores SkipLocal.
	SkipLocal bool
	// NoStale serves no value past its TTL, and none in place of an error: the read waits for the
	// load and gets its error. No Result is marked stale.
	NoStale bool
}

// A Reader reads a cache by rules of its own. It may be used concurrently.
type Reader[K comparable, V any] struct {
	c     *Cache[K, V]
	rules Reads
}

// With returns a Reader of c with rules. It is cheap enough to call for each request. A Reader
// need not be closed.
func (c *Cache[K, V]) With(rules Reads) *Reader[K, V] {
	rules.SkipLocal = rules.SkipLocal && c.fleet.Shared()
	if rules.Reload || rules.MaxAge < 0 {
		rules.Reload, rules.MaxAge = true, 1
	}
	return &Reader[K, V]{c, rules}
}

// Get returns the value of key as [Cache.Get] does, by the rules of r.
func (r *Reader[K, V]) Get(ctx context.Context, key K) (V, error) {
	if r.rules == (Reads{}) {
		return r.c.Get(ctx, key)
	}
	answer, err := r.c.read(ctx, key, tier.Miss, r.c.composing(ctx, r.rules))
	return r.c.values.own(answer.entry), err
}

// Fetch returns the value of key as [Cache.Fetch] does, by the rules of r.
func (r *Reader[K, V]) Fetch(ctx context.Context, key K) (Result[V], error) {
	if r.rules == (Reads{}) {
		return r.c.Fetch(ctx, key)
	}
	answer, err := r.c.read(ctx, key, tier.Miss, r.c.composing(ctx, r.rules))
	return r.c.result(answer, time.Now()), err
}

// GetMany returns the values of keys as [Cache.GetMany] does, by the rules of r.
func (r *Reader[K, V]) GetMany(ctx context.Context, keys []K) (map[K]V, error) {
	if r.rules == (Reads{}) {
		return r.c.GetMany(ctx, keys)
	}
	return r.c.getMany(ctx, keys, r.c.composing(ctx, r.rules))
}

// FetchMany returns the values of keys as [Cache.FetchMany] does, by the rules of r.
func (r *Reader[K, V]) FetchMany(ctx context.Context, keys []K) (map[K]Result[V], error) {
	if r.rules == (Reads{}) {
		return r.c.FetchMany(ctx, keys)
	}
	return r.c.fetchMany(ctx, keys, r.c.composing(ctx, r.rules))
}
