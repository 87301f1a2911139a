package cache_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

var withLocalTier = []cell{
	{redis: "mini", local: true, breaker: true}, {redis: "real", local: true, breaker: true}, {redis: "none", local: true, breaker: true},
}

// A unit test may count loads. Catches a local tier that shows what it was given only
// when a goroutine of its own has taken it: without Redis most keys are loaded twice,
// with Redis half of the nulls are.
func TestWhatWasLoadedIsThereForTheNextGet(t *testing.T) {
	const keys = 500
	inCells(t, withLocalTier, func(r *rig) {
		for _, callers := range []int{1, 64} {
			for _, exists := range []bool{true, false} {
				var loads atomic.Int64
				c := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) {
					if loads.Add(1); !exists {
						return "", cache.ErrNotFound
					}
					return "v", nil
				}}, func(o *cache.Options) { o.Name = fmt.Sprint("test", callers, exists) })
				var wg sync.WaitGroup
				for caller := range callers {
					wg.Go(func() {
						for key := int64(caller); key < keys; key += int64(callers) {
							for range 2 {
								if v, err := c.Get(r.ctx, key); exists && v != "v" || exists != (err == nil) || !exists && !errors.Is(err, cache.ErrNotFound) {
									r.Errorf("%d: %q, %v", key, v, err)
								}
							}
						}
					})
				}
				wg.Wait()
				if n := loads.Load(); n != keys {
					r.Errorf("%d callers, values %v: %d loads of %d keys", callers, exists, n, keys)
				}
			}
		}
	})
}

// Catches a flight that ends before its value can be found: callers who come then load
// again, or a hundred of them do.
func TestACrowdWithoutRedisLoadsEachKeyOnce(t *testing.T) {
	const keys, callers = 200, 100
	inCells(t, []cell{{redis: "none", local: true, breaker: true}}, func(r *rig) {
		var loads atomic.Int64
		c := open(r, cache.Source[int64, int64]{Load: func(_ context.Context, key int64) (int64, error) {
			loads.Add(1)
			return key, nil
		}})
		for key := range int64(keys) {
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() { c.gives(r, key, key) })
			}
			wg.Wait()
		}
		if n := loads.Load(); n != keys {
			r.Errorf("%d loads of %d keys", n, keys)
		}
	})
}

// The local tier has the value before its flight ends. Otherwise a caller that comes in between would
// load again.
func TestWithoutRedisAKeyIsLoadedOnceForAllWhoAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cell{redis: "none", local: true}, nil)
		source := newRows(r)
		source.slowly(func(context.Context, int64) error { time.Sleep(5 * time.Millisecond); return nil })
		for key := range int64(200) {
			source.put(key, "v1")
		}
		c := open(r, source.source())
		for key := range int64(200) {
			var callers sync.WaitGroup
			for range 100 {
				callers.Go(func() { c.gives(r, key, "v1") })
			}
			callers.Wait()
			if n := source.loads(key); n != 1 {
				r.Errorf("key %d was loaded %d times", key, n)
			}
		}
	})
}

// Catches a local tier whose own limit of a life, five minutes, ends the TTL.
func TestWithoutRedisATTLIsTheTTL(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true, breaker: true}}, func(r *rig) {
		var loads atomic.Int64
		c := open(r, cache.Source[int64, int64]{Load: func(context.Context, int64) (int64, error) { return loads.Add(1), nil }},
			func(o *cache.Options) { o.Jitter = -1 }) // TTL: 10 minutes
		for range 800 {
			if got, err := c.Fetch(r.ctx, 1); err != nil || got.Age > 601*time.Second {
				r.Errorf("%+v, %v", got, err)
			}
			time.Sleep(time.Second)
		}
		if n := loads.Load(); n != 2 {
			r.Errorf("%d loads in 800 s", n)
		}
	})
}

// A refresh begins with the first read past the TTL. Catches a value that counts as good
// for a second whatever its TTL, and one that is loaded again before its TTL has ended:
// the local tier's clock is ahead by 50 ms.
func TestWithoutRedisATTLOf100msIsOne(t *testing.T) {
	for name, change := range map[string]func(*cache.Options){"stale while revalidate": func(*cache.Options) {}, "hard": hard} {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "none", local: true, breaker: true}}, func(r *rig) {
				var loads atomic.Int64
				c := open(r, cache.Source[int64, int64]{Load: func(context.Context, int64) (int64, error) { return loads.Add(1), nil }},
					ttl(100*time.Millisecond), change, func(o *cache.Options) { o.Jitter = -1 })
				for range 500 {
					if got, err := c.Fetch(r.ctx, 1); err != nil || got.Age > 102*time.Millisecond {
						r.Errorf("%+v, %v", got, err)
					}
					time.Sleep(2 * time.Millisecond)
				}
				if n := loads.Load(); n < 10 || n > 11 {
					r.Errorf("%d loads in a second", n)
				}
			})
		})
	}
}

// Without Redis a TTL under a second holds: a refresh begins at its end, not after a second.
func TestWithoutRedisAShortTTLIsOne(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true}}, func(r *rig) {
		c := open(r, newRows(r, 1).source(), ttl(100*time.Millisecond))
		oldest := time.Duration(0)
		for range 1000 {
			got, err := c.Fetch(r.ctx, 1)
			if err != nil {
				r.Fatal(err)
			}
			oldest = max(oldest, got.Age)
			time.Sleep(2 * time.Millisecond)
		}
		if oldest > 110*time.Millisecond {
			r.Errorf("the oldest answer was %v old", oldest)
		}
	})
}

// A service may have fifty caches, most of them small. Catches tables and goroutines of the
// local tier that are made before there is an entry: 5.1 MiB and five goroutines each.
func TestAnEmptyCacheCostsLittle(t *testing.T) {
	const caches = 10
	rdb := redistest.Start(t).Client(t)
	for name, client := range map[string]redis.UniversalClient{"none": nil, "redis": rdb} {
		t.Run(name, func(t *testing.T) {
			load := func(context.Context, int64) (int64, error) { return 0, nil }
			openOne := func(name string) {
				c := redistest.Must(cache.New(client, load, cache.Options{Name: name}))
				t.Cleanup(func() { _ = c.Close() })
				if client != nil {
					redistest.Eventually(t, 20*time.Second, "the cache hears its heartbeat", func() bool { return c.Stats().Live })
				}
			}
			openOne("first") // which opens the connections
			goroutines, before := runtime.NumGoroutine(), heapInUse()
			for i := range caches {
				openOne(fmt.Sprint("empty", i))
			}
			if each := (heapInUse() - before) / caches; each > 1<<20 {
				t.Errorf("an empty cache takes %d KiB", each>>10)
			}
			if each := float64(runtime.NumGoroutine()-goroutines) / caches; each > 2 {
				t.Errorf("an empty cache has %.1f goroutines", each)
			}
		})
	}
}

// Caches that share a budget answer each for itself.
func TestCachesShareABudget(t *testing.T) {
	shared := &localcache.Budget{MaxBytes: 1 << 20}
	for i := range 3 {
		load := func(_ context.Context, key int64) (int64, error) { return key*10 + int64(i), nil }
		c := redistest.Must(cache.New(nil, load, cache.Options{Name: fmt.Sprint("share", i), Local: localcache.Options{Budget: shared}}))
		defer func() { _ = c.Close() }()
		for range 2 {
			for key := range int64(100) {
				if v, err := c.Get(t.Context(), key); v != key*10+int64(i) || err != nil {
					t.Fatalf("%d, %v", v, err)
				}
			}
		}
		if n := c.Stats().Loads; n != 100 {
			t.Errorf("%d loads", n)
		}
	}
}
