package linear

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

// nested is a cache of pages, whose loader reads the rows of another cache. Its writers name
// the keys of both: those of the rows first, as a page that is loaded between the two would
// otherwise be made of the old row and stay.
type nested struct{ rows, pages *cache.Cache[int, int64] }

// newNested makes caches that share a breaker, in which the load of a row runs in the place
// of its page, and caches with a breaker each. The limits are low: loads queue.
func newNested(n int, rdb redis.UniversalClient, db *board, patience time.Duration) (s nested, err error) {
	options := func(name string, b *breaker.Breaker) cache.Options {
		return cache.Options{
			Name: name, TTL: valueTTL, RedisTimeout: patience, Logger: quiet, Breaker: b,
			StaleWhileRevalidate: -1, StaleIfError: -1, EarlyRefresh: -1,
			Local: localcache.Options{MaxBytes: -1},
		}
	}
	var of [2]*breaker.Breaker
	for i := range of {
		of[i], err = breaker.New(breaker.Options{Name: "linear", MaxConcurrent: 2, QueueTimeout: time.Minute, Logger: quiet})
		if err != nil {
			return s, err
		}
	}
	if n%2 == 1 {
		of[1] = of[0]
	}
	s.rows, err = cache.NewFrom(rdb, cache.Source[int, int64]{
		Load: func(_ context.Context, key int) (int64, error) { return load(db, key), nil },
	}, options("rows", of[0]))
	if err != nil {
		return s, err
	}
	one := func(ctx context.Context, key int) (int64, error) {
		pause()
		defer pause()
		return s.rows.Get(ctx, key)
	}
	many := func(ctx context.Context, keys []int) (map[int]int64, error) {
		pause()
		defer pause()
		return s.rows.GetMany(ctx, keys)
	}
	s.pages, err = cache.NewFrom(rdb, []cache.Source[int, int64]{{Load: one}, {LoadMany: many}, {Load: one, LoadMany: many}}[n%3], options("pages", of[1]))
	return s, err
}

// read reads pages, and rows as well: what was seen in one is seen in the other.
func (s nested) read(keys []int) ([]int64, error) {
	if rand.IntN(4) == 0 {
		return cached{s.rows}.read(keys)
	}
	return cached{s.pages}.read(keys)
}

func (s nested) write(key int, commit func()) error {
	return insist(func() error {
		committed := false
		err := cache.Write(context.Background(), func(context.Context) error {
			pause()
			commit()
			committed = true
			pause()
			return nil
		}, s.rows.Changes(key), s.pages.Changes(key))
		if err != nil && committed {
			return s.invalidate(key)
		}
		return err
	})
}

func (s nested) invalidate(key int) error {
	return s.each(func(c cached) error { return c.invalidate(key) })
}

func (s nested) set(key int, version int64) error {
	return s.each(func(c cached) error { return c.set(key, version) })
}

func (s nested) refresh(key int) error {
	return s.each(func(c cached) error { return c.refresh(key) })
}

func (s nested) each(do func(cached) error) error {
	if err := do(cached{s.rows}); err != nil {
		return err
	}
	return do(cached{s.pages})
}

func (s nested) close() {
	cached{s.pages}.close()
	cached{s.rows}.close()
}

// Once a writer of both has returned, nobody reads a page or a row from before, though pages
// are made of rows that others load meanwhile. Between the two invalidations a page may be
// older than a row that somebody has read: no order explains that, as in two releases.
func TestShortHistoriesOfNestedCachesAreNotStale(t *testing.T) { shortHistories(t, isStale, "nested") }

func TestNoPageIsStaleWhoseRowIsCached(t *testing.T) {
	s := redistest.Start(t)
	neverStale(t, "nested", s, s.Addr(), calm, redistest.Pick(2*time.Second, time.Minute))
}
