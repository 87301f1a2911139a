package cache

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/tier"
	"github.com/levee-go/levee/internal/wait"
)

// Reads are the rules of a [Reader]. They hold for its callers alone: what others get of the same
// keys, and when, does not depend on them. The zero value has no rules: such reads are those of the cache.
type Reads struct {
	// MaxAge bounds how long ago the value was loaded: it is an answer if its load began no
	// longer than MaxAge before the read did, as far as the clocks of the hosts agree. An older
	// one is loaded anew, for all who read Redis: one load for all in all processes who are as strict,
	// while other callers get the old value at once, and other processes keep it in their memory for up to
	// Local.TTL (Refresh tells them). If that load fails, the older value is
	// served, marked stale. A load that begins after the read is always new enough, so 1 ns
	// means: call the loader. 0: of any age; negative: as 1 ns.
	MaxAge time.Duration
	// NoLoad never loads: it returns what this process, the filter or Redis knows, otherwise
	// [ErrNotCached], at once. Such a read waits for nobody's load, and begins none, also no
	// refresh. While Redis is out of reach, a value that this process has kept is served, marked
	// stale.
	NoLoad bool
	// SkipLocal reads Redis, whatever the local tier holds: a read that begins after an
	// Invalidate, Write or Set of any process has returned nil sees what that has changed. It
	// costs a round trip. While Redis is out of reach, the loader is called. A cache without
	// Redis has no other process to follow, and ignores it.
	SkipLocal bool
	// With NoStale nothing is served past its TTL, nor in place of an error: the read waits for
	// the load, and gets its error. No Result is marked stale.
	NoStale bool
}

// A Reader reads a cache by rules of its own. It may be used concurrently.
type Reader[K comparable, V any] struct {
	c     *Cache[K, V]
	rules Reads
}

// With returns a Reader of c with rules. It is cheap enough to be made for each request. There is
// nothing to close.
func (c *Cache[K, V]) With(rules Reads) *Reader[K, V] {
	rules.SkipLocal = rules.SkipLocal && c.fleet.Shared()
	if rules.MaxAge < 0 {
		rules.MaxAge = 1
	}
	return &Reader[K, V]{c, rules}
}

// Get is [Cache.Get] by the rules of r.
func (r *Reader[K, V]) Get(ctx context.Context, key K) (V, error) {
	if r.rules == (Reads{}) {
		return r.c.Get(ctx, key)
	}
	answer, err := r.c.read(ctx, key, tier.Miss, r.c.composing(ctx, r.rules))
	return r.c.own(answer.entry), err
}

// Fetch is [Cache.Fetch] by the rules of r.
func (r *Reader[K, V]) Fetch(ctx context.Context, key K) (Result[V], error) {
	if r.rules == (Reads{}) {
		return r.c.Fetch(ctx, key)
	}
	answer, err := r.c.read(ctx, key, tier.Miss, r.c.composing(ctx, r.rules))
	return r.c.result(answer, time.Now()), err
}

// GetMany is [Cache.GetMany] by the rules of r.
func (r *Reader[K, V]) GetMany(ctx context.Context, keys []K) (map[K]V, error) {
	if r.rules == (Reads{}) {
		return r.c.GetMany(ctx, keys)
	}
	return r.c.getMany(ctx, keys, r.c.composing(ctx, r.rules))
}

// FetchMany is [Cache.FetchMany] by the rules of r.
func (r *Reader[K, V]) FetchMany(ctx context.Context, keys []K) (map[K]Result[V], error) {
	if r.rules == (Reads{}) {
		return r.c.FetchMany(ctx, keys)
	}
	return r.c.fetchMany(ctx, keys, r.c.composing(ctx, r.rules))
}

// A want is what a read takes for an answer. That of [Cache.Get], nil, takes whatever the cache
// serves.
type want struct {
	Reads
	called time.Time // the read
	part   bool      // of a value that is being loaded, see compose.go
}

func (w *want) noLoad() bool { return w != nil && w.NoLoad }

// strict reports whether a read does not take all that others take, and so shares no flight with
// them: a flight that is opened for a read without rules may end with an old value.
func (w *want) strict() bool { return w != nil && (w.MaxAge != 0 || w.SkipLocal || w.NoStale) }

// suits reports whether an answer is one for w.
func (f *found[V]) suits(w *want) bool {
	switch {
	case w == nil:
		return true
	case w.NoStale && f.stale, w.SkipLocal && f.tier == TierLocal && !(w.part && f.fallback): // wherever it comes from: a flight may have looked there for another reader
		return false
	}
	return f.fallback || f.isNewFor(w)
}

// isNewFor reports whether an answer is no older than w wants. What the filter says is of now, and
// a null in the local tier has no times.
func (f *found[V]) isNewFor(w *want) bool {
	if w.MaxAge == 0 || f.tier == TierFilter {
		return true
	}
	oldest := w.called.Add(-w.MaxAge)
	return f.load != nil && !f.load.began.Before(oldest) || f.entry.created != 0 && !f.entry.began().Before(oldest)
}

// asFallback marks an old value that is served in place of an error, or reports that w takes none.
// A null is no value to fall back to.
func (f found[V]) asFallback(w *want) (found[V], bool) {
	f.fallback = true
	if w == nil {
		return f, true
	}
	f.stale = f.stale || !f.isNewFor(w)
	return f, !f.entry.null && f.suits(w)
}

// again looks into the local tier for a caller who has missed it, or whose rules may refuse what
// is there: so nothing is counted.
func (c *Cache[K, V]) again(key K, w *want) (answer found[V], ok bool) {
	answer = found[V]{entry: c.absent, tier: TierLocal}
	switch e, kind := c.local.Again(key); {
	case kind == tier.Miss || kind == tier.Value && c.cleared(e):
		return answer, false
	case kind == tier.Value:
		answer.entry, answer.stale = e, e.past(time.Now())
	}
	return answer, answer.suits(w)
}

// notCached ends a lookup that must not load, and whose caller has read Redis in vain.
func (c *Cache[K, V]) notCached(ctx context.Context, l *lookup[K, V]) {
	if ctx.Err() != nil {
		l.failed(wait.Ended(ctx))
		return
	}
	if l.unread {
		if old, ok := c.fallbackOf(l); ok {
			l.answered(old)
			return
		}
		if old, ok := c.kept(l); ok {
			l.answered(old)
			return
		}
	}
	l.failed(ErrNotCached)
}
