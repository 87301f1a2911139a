package cache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A page of values past their TTL is served at once, and refreshed by one query, even if the source can
// load single keys: Load would make a hundred of it, sixteen at a time, and later readers would wait for
// the rest. Keys that share a call count once among Options.Refreshes.
func TestAStalePageIsRefreshedByOneCall(t *testing.T) {
	byItself := func(context.Context, int64) (string, error) {
		return "", errors.New("a key of a page was loaded by itself")
	}
	for name, test := range map[string]struct {
		load  func(context.Context, int64) (string, error)
		cells []cell
	}{
		"LoadMany":          {nil, withRedis},
		"LoadMany and Load": {byItself, append([]cell{{redis: "none", local: true}}, overRedis...)},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, test.cells, func(r *rig) {
				page, source := upTo(1, 100), newBatches(r, 1, 100)
				src := source.source()
				src.Load = test.load
				c := open(r, src, staleAfterASecond, func(o *cache.Options) { o.Refreshes = 1 })
				for n := range 3 {
					source.forget()
					for _, key := range page {
						source.put(key, fmt.Sprint("v", n))
					}
					if n > 0 {
						pastTTL()
						c.givesMany(r, page, fmt.Sprint("v", n-1))
					} else {
						c.givesMany(r, page, "v0")
					}
					r.eventually("it is refreshed", func() bool { return c.Stats().Refreshed == uint64(100*n) })
					c.givesMany(r, page, fmt.Sprint("v", n))
					source.loadedOnce(r, 100)
					if _, calls := source.loads(); calls != 1 {
						r.Errorf("%d calls of the source in round %d, want one", calls, n)
					}
				}
			})
		})
	}
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

// A batch of 20 keys waits, until its deadline, for loads that another one has begun. It gets a fallback
// for each of its keys, also if it has opened the flight of its first key, which it has read: it reads
// the fallbacks of its other keys while it waits for this flight; at the deadline it would be too late.
// Catches a batch in which 19 of 20 keys have no value.
func TestThereIsAFallbackForEachKeyOfABatchThatWaits(t *testing.T) {
	for name, test := range map[string]struct {
		first int64 // of the keys that the other batch loads
		reads uint64
	}{
		"for all its keys":      {1, 1},
		"for all but its first": {2, 2}, // a read for the first key, and one for the others
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
				const keys = 20
				source, gate := newBatches(r, 1, keys), newLatch()
				defer close(gate.open)
				c := open(r, source.source(), onlyFallback, within(5*time.Second))
				c.givesMany(r, upTo(1, keys), "v1")
				time.Sleep(2 * time.Second)
				source.slowly(func(ctx context.Context, _ []int64) error { return gate.wait(ctx, 0) })
				var wg sync.WaitGroup
				wg.Go(func() { c.givesMany(r, upTo(test.first, keys), "v1") }) // its load ends after 5 s, with an error
				gate.arrived(r)
				before := c.Stats().RedisRead.Count()
				ctx, cancel := context.WithTimeout(r.ctx, time.Second)
				defer cancel()
				got, err := c.GetMany(ctx, upTo(1, keys))
				if err != nil || len(got) != keys {
					r.Errorf("%d values, %v", len(got), err)
				}
				if n := c.Stats().RedisRead.Count() - before; n != test.reads {
					r.Errorf("%d reads of Redis, want %d", n, test.reads)
				}
				wg.Wait()
			})
		})
	}
}
