package cache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Values past their TTL are served at once, and refreshed in shared calls.
func TestStaleValuesOfABatchAreRefreshed(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source := newBatches(r, 1, 10)
		c := open(r, source.source(), ttl(time.Minute), func(o *cache.Options) {
			o.StaleWhileRevalidate, o.Jitter, o.EarlyRefresh = time.Hour, -1, -1
		})
		c.givesMany(r, upTo(1, 10), "v1")
		time.Sleep(2 * time.Minute)
		for key := range int64(10) {
			source.put(1+key, "v2")
		}
		source.forget()
		c.givesMany(r, upTo(1, 10), "v1")
		r.eventually("all are refreshed", func() bool { return c.Stats().Refreshed == 10 })
		time.Sleep(2 * time.Second) // for which an old value answers in the local tier
		c.givesMany(r, upTo(1, 10), "v2")
		source.loadedOnce(r, 10)
	})
}

// A page of values past their TTL is refreshed by one query, even if the source can load single keys:
// Load would make a hundred of it, sixteen at a time, and later readers would wait for the rest. Keys
// that share a call count once among Options.Refreshes.
func TestAStalePageIsRefreshedByOneCall(t *testing.T) {
	cells := append([]cell{{redis: "none", local: true}}, overRedis...)
	inCells(t, cells, func(r *rig) {
		var calls, edition atomic.Int64
		c := open(r, cache.Source[int64, string]{
			Load: func(context.Context, int64) (string, error) {
				return "", errors.New("a key of a page was loaded by itself")
			},
			LoadMany: func(_ context.Context, keys []int64) (map[int64]string, error) {
				calls.Add(1)
				values := map[int64]string{}
				for _, key := range keys {
					values[key] = fmt.Sprint("v", edition.Load())
				}
				return values, nil
			},
		}, staleAfterASecond, func(o *cache.Options) { o.Refreshes = 1 })
		page := make([]int64, 100)
		for i := range page {
			page[i] = int64(i)
		}
		reads := func(want string) {
			r.Helper()
			got, err := c.GetMany(r.ctx, page)
			if err != nil || len(got) != len(page) {
				r.Fatalf("%d values, %v", len(got), err)
			}
			for key, value := range got {
				if value != want {
					r.Fatalf("%d is %s, want %s", key, value, want)
				}
			}
		}
		for n := range int64(3) {
			edition.Store(n)
			if n == 0 {
				reads("v0")
			} else {
				pastTTL()
				reads(fmt.Sprint("v", n-1))
			}
			r.eventually("it is refreshed", func() bool { return c.Stats().Refreshed == uint64(100*n) })
			reads(fmt.Sprint("v", n))
			if calls.Load() != n+1 {
				r.Fatalf("%d calls of the source, want %d", calls.Load(), n+1)
			}
		}
	})
}

// A value that is read near the end of its TTL is refreshed before this end.
func TestValuesOfABatchAreRefreshedEarly(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source := newBatches(r, 1, 10)
		source.slowly(func(context.Context, []int64) error { time.Sleep(100 * time.Millisecond); return nil })
		c := open(r, source.source(), ttl(time.Minute), func(o *cache.Options) {
			o.StaleWhileRevalidate, o.Jitter, o.EarlyRefresh = -1, -1, 1000
		})
		c.givesMany(r, upTo(1, 10), "v1")
		time.Sleep(55 * time.Second)
		c.givesMany(r, upTo(1, 10), "v1")
		r.eventually("they are refreshed", func() bool { return c.Stats().Refreshed > 5 })
		if n := c.Stats().Stale; n != 0 {
			r.Errorf("want no stale answers, got %d", n)
		}
	})
}

// A batch has one SoftTimeout, not one for each key: with a source that hangs, a
// hundred old values would take 20 s.
func TestABatchOfOldValuesTakesOneSoftTimeout(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source := newBatches(r, 1, 100)
		window := func(o *cache.Options) {
			o.StaleWhileRevalidate, o.StaleIfError, o.Jitter, o.SoftTimeout = -1, time.Hour, -1, 200*time.Millisecond
		}
		c := open(r, source.source(), window, ttl(time.Minute))
		c.givesMany(r, upTo(1, 100), "v1")
		time.Sleep(2 * time.Minute)
		source.slowly(func(ctx context.Context, _ []int64) error { <-ctx.Done(); return ctx.Err() })
		began := time.Now()
		c.givesMany(r, upTo(1, 100), "v1")
		if took := time.Since(began); took > 300*time.Millisecond {
			r.Errorf("want the old values after 200 ms, got them after %v", took)
		}
		if n := c.Stats().Stale; n != 100 {
			r.Errorf("want 100 stale answers, got %d", n)
		}
	})
}

// A batch waits for loads of other callers, and gets a fallback for each of its keys.
func TestThereIsAFallbackForEachKeyOfABatchThatWaits(t *testing.T) {
	aBatchWaitsForAnother(t, 1, 1)
}

// A batch has opened the flight of its first key, which it has read, and waits for this flight until its
// deadline. It reads the fallbacks of its other keys while it waits; at the deadline it would be too
// late. Catches a batch in which 19 of 20 keys have no value.
func TestABatchReadsFallbacksWhileItWaitsForAKeyThatItHasRead(t *testing.T) {
	aBatchWaitsForAnother(t, 2, 2) // a read for the first key, and one for the others
}

// aBatchWaitsForAnother has a batch of 20 keys wait, until its deadline, for a batch of those from first on. It
// gets its old values by so many reads of Redis.
func aBatchWaitsForAnother(t *testing.T, first int64, reads uint64) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, m *redistest.MiniServer) {
		const keys = 20
		source, gate := newBatches(r, 1, keys), newLatch()
		defer close(gate.open)
		c := open(r, source.source(), onlyFallback)
		c.givesMany(r, upTo(1, keys), "v1")
		time.Sleep(2 * time.Second)
		source.slowly(func(ctx context.Context, _ []int64) error { return gate.wait(ctx, 0) })
		var wg sync.WaitGroup
		wg.Go(func() { c.givesMany(r, upTo(first, keys), "v1") }) // its load ends after 5 s, with an error
		gate.arrived(r)
		before := c.Stats().RedisRead.Count()
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		got, err := c.GetMany(ctx, upTo(1, keys))
		if err != nil || len(got) != keys {
			r.Errorf("%d values, %v", len(got), err)
		}
		if n := c.Stats().RedisRead.Count() - before; n != reads {
			r.Errorf("%d reads of Redis, want %d", n, reads)
		}
		wg.Wait()
	})
}
