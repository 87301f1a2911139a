package cache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// While fewer than four calls run, a load begins at once. What comes after that shares
// the next call: the slower the source, the more share a call.
func TestSingleGetsShareCallsOfLoadMany(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source, gate := newBatches(r, 1, 104), make(chan struct{})
		source.slowly(func(context.Context, []int64) error { <-gate; return nil })
		c := open(r, source.source())
		var wg sync.WaitGroup
		for key := range int64(104) {
			wg.Go(func() { c.gives(r, 1+key, "v1") })
			if key < 4 {
				r.eventually("a call has begun", func() bool { return c.Stats().Loads == uint64(key)+1 })
			}
		}
		r.eventually("all have asked", func() bool { return c.Stats().Gets == 104 })
		time.Sleep(100 * time.Millisecond)
		close(gate)
		wg.Wait()
		source.loadedOnce(r, 104)
		if _, calls := source.loads(); calls > 4+10 {
			r.Errorf("want about 5 calls for 104 keys, got %d", calls)
		}
	})
}

// Ten callers share a call, one of whom is in a hurry. Redis takes longer for their leases than half of its
// time, and not longer than it may.
//
// Defect: all are loaded without a lease, and nothing is stored.
func TestACallerInAHurryCostsTheOthersNoLease(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, m *redistest.MiniServer) {
		source, gate := newBatches(r, 1, 14), make(chan struct{})
		source.slowly(func(context.Context, []int64) error { <-gate; return nil })
		c := openOn(r, m.Client(r), source.source())
		var all sync.WaitGroup
		for key := range int64(4) { // as many calls as run at a time
			all.Go(func() { c.gives(r, 1+key, "v1") })
		}
		synctest.Wait()
		var scripts atomic.Int64
		m.Before(func(command string, _ []string) {
			if strings.HasPrefix(command, "EVAL") && scripts.Add(1) > 4 { // after the four commits
				time.Sleep(20 * time.Millisecond) // each of ten leases
			}
		})
		all.Go(func() {
			ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
			defer cancel()
			_, _ = c.Get(ctx, 5)
		})
		for key := range int64(9) {
			all.Go(func() { c.gives(r, 6+key, "v1") })
		}
		synctest.Wait()
		close(gate)
		all.Wait()
		if n := c.Stats().Degraded; n > 0 {
			r.Errorf("%d keys were loaded without a lease", n)
		}
	})
}

// Calls that wait for a place of the breaker must not hold one that others wait for.
func TestABreakerWithOnePlaceDoesNotStopManyGets(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none"}}, func(r *rig) {
		source := newBatches(r, 1, 1000)
		source.slowly(func(context.Context, []int64) error { time.Sleep(10 * time.Millisecond); return nil })
		c := open(r, source.source(), func(o *cache.Options) {
			o.Breaker = redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 1, QueueTimeout: time.Second}))
		})
		began := time.Now()
		var wg sync.WaitGroup
		for _, key := range upTo(1, 1000) {
			wg.Go(func() { c.gives(r, key, "v1") })
		}
		wg.Wait()
		source.loadedOnce(r, 1000)
		if took := time.Since(began); took > time.Second {
			r.Errorf("want 1,000 Gets in a second, got %v", took)
		}
	})
}

// A load that asks its own cache for other keys holds one of the four calls. If its
// keys waited for a call, four such loads would wait for themselves.
func TestALoadManyMayAskItsOwnCacheForOtherKeys(t *testing.T) {
	type process = *probe[int64, string]
	for name, ask := range map[string]func(ctx context.Context, c process, keys []int64) (map[int64]string, error){
		"Get": func(ctx context.Context, c process, keys []int64) (map[int64]string, error) {
			values := map[int64]string{}
			for _, key := range keys {
				value, err := c.Get(ctx, key)
				if err != nil {
					return nil, err
				}
				values[key] = value
			}
			return values, nil
		},
		"GetMany": func(ctx context.Context, c process, keys []int64) (map[int64]string, error) {
			return c.GetMany(ctx, keys)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, fewCells, func(r *rig) {
				r.known(upTo(1, 200)...)
				var c process
				c = open(r, cache.Source[int64, string]{LoadMany: func(ctx context.Context, keys []int64) (map[int64]string, error) {
					found := map[int64]string{}
					var others []int64
					for _, key := range keys {
						if found[key] = "v1"; key <= 100 {
							others = append(others, key+100)
						}
					}
					if len(others) == 0 {
						return found, nil
					}
					time.Sleep(20 * time.Millisecond) // all four calls are taken
					values, err := ask(ctx, c, others)
					if len(values) != len(others) {
						err = errors.Join(err, fmt.Errorf("%d values for %d keys", len(values), len(others)))
					}
					return found, err
				}})
				began := time.Now()
				var wg sync.WaitGroup
				for _, key := range upTo(1, 16) {
					wg.Go(func() { c.gives(r, key, "v1") })
				}
				wg.Go(func() { c.givesMany(r, upTo(17, 100), "v1") })
				wg.Wait()
				if took := time.Since(began); took > 4*time.Second { // the load has five
					r.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A read by rules has a flight of its own beside that of the Gets. Where there is no lease to tell
// them apart, as without Redis, both may come to one call: a loader gets each key once.
func TestALoadManyGetsNoKeyTwice(t *testing.T) {
	inCells(t, []cell{{redis: "none"}, {redis: "none", local: true}}, func(r *rig) {
		source, gate := newBatches(r, 1, 10), make(chan struct{})
		source.slowly(func(_ context.Context, keys []int64) error {
			if keys[0] > 1 {
				<-gate
			}
			return nil
		})
		c := open(r, source.source())
		var wg sync.WaitGroup
		for key := range int64(4) { // all calls that may run
			wg.Go(func() { c.gives(r, 2+key, "v1") })
			synctest.Wait()
		}
		wg.Go(func() { c.gives(r, 1, "v1") })
		wg.Go(func() { c.reads(r, anew, 1, "v1", false) })
		synctest.Wait()
		close(gate)
		wg.Wait()
		for _, keys := range source.calls {
			if slices.Sort(keys); len(slices.Compact(slices.Clone(keys))) < len(keys) {
				r.Errorf("a call for %v", keys)
			}
		}
		if _, calls := source.loads(); calls != 5 {
			r.Errorf("%d calls, want one for both reads of a key", calls)
		}
	})
}

// Four calls wait for a locked row. Catches calls that count for as long as they hang: every other key
// waited for them, though the breaker has 60 places.
func TestCallsThatHangDoNotStopOtherKeys(t *testing.T) {
	for _, read := range []struct {
		name   string
		source func(*batches) cache.Source[int64, string]
		get    func(r *rig, c *probe[int64, string], keys ...int64)
	}{
		{"Get", (*batches).source, func(r *rig, c *probe[int64, string], keys ...int64) { c.gives(r, keys[0], "v1") }},
		{"GetMany", func(b *batches) cache.Source[int64, string] {
			return cache.Source[int64, string]{Load: b.oneByOne().Load, LoadMany: b.load}
		}, func(r *rig, c *probe[int64, string], keys ...int64) { c.givesMany(r, keys, "v1") }},
	} {
		t.Run(read.name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini", breaker: true}, {redis: "none", breaker: true}}, func(r *rig) {
				source, locked := newBatches(r, 1, 16), make(chan struct{})
				source.slowly(func(_ context.Context, keys []int64) error {
					if slices.Min(keys) <= 8 {
						<-locked
					}
					return nil
				})
				c := open(r, read.source(source))
				var all sync.WaitGroup
				for key := int64(1); key <= 8; key += 2 {
					all.Go(func() { read.get(r, c, key, key+1) })
					synctest.Wait()
				}
				for range 2 {
					began := time.Now()
					read.get(r, c, 9, 10)
					if took := time.Since(began); took > 600*time.Millisecond {
						r.Errorf("other keys took %v", took)
					}
				}
				close(locked)
				all.Wait()
			})
		})
	}
}

// A source hangs for six seconds, and nothing opens the breaker. Catches misses that pile up behind the calls
// that hang: when the source works again, it loaded thousands of keys that nobody wanted any more.
func TestMissesDoNotPileUpWhileTheSourceHangs(t *testing.T) {
	inCells(t, []cell{{redis: "none"}}, func(r *rig) {
		source, works := newBatches(r, 0, 0), make(chan struct{})
		source.slowly(func(ctx context.Context, _ []int64) error {
			select {
			case <-works:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		c := open(r, source.source(), func(o *cache.Options) {
			o.Breaker = redistest.Must(breaker.New(breaker.Options{FailureRatio: -1}))
		})
		var all sync.WaitGroup
		for key := range int64(6000) {
			time.Sleep(time.Millisecond)
			all.Go(func() {
				ctx, cancel := context.WithTimeout(r.ctx, 500*time.Millisecond)
				defer cancel()
				_, _ = c.Get(ctx, key)
			})
		}
		all.Wait()
		source.forget()
		close(works)
		time.Sleep(time.Minute)
		if byKey, calls := source.loads(); len(byKey) > 600 {
			r.Errorf("%d keys that nobody wants were loaded, in %d calls", len(byKey), calls)
		}
	})
}

// A slow source has two places. Catches batches that stop counting while they wait for a place: each was smaller
// than the one before, and half of the callers were refused.
func TestBatchesThatWaitForAPlaceGrow(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "none"}}, func(r *rig) {
		source := newBatches(r, 1, 2000)
		source.slowly(func(context.Context, []int64) error { time.Sleep(time.Second); return nil })
		c := open(r, source.source(), func(o *cache.Options) {
			o.Breaker = redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 2}))
		})
		var all sync.WaitGroup
		for key := int64(1); key <= 2000; key++ {
			time.Sleep(5 * time.Millisecond)
			all.Go(func() { c.gives(r, key, "v1") })
		}
		all.Wait()
	})
}
