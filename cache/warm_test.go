package cache_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// warmed warms keys as fast as the source allows. None fails.
func (p *probe[K, V]) warmed(r *rig, keys []K, o cache.WarmOptions) {
	r.Helper()
	if o.Rate == 0 {
		o.Rate = -1
	}
	var done, failed int
	o.Progress = func(d, f int) { done, failed = d, f }
	if err := p.Warm(r.ctx, slices.Values(keys), o); err != nil {
		r.Errorf("Warm: %v", err)
	}
	if done != len(keys) || failed != 0 {
		r.Errorf("of %d keys %d are done and %d have failed", len(keys), done, failed)
	}
}

// Two processes that start together warm the same keys. Without the look into Redis and
// the lease each would load all of them.
func TestTwoProcessesThatWarmLoadEachKeyOnce(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true, filter: true, breaker: true}, {redis: "real"}}, func(r *rig) {
		const n = 300
		rows, batches := newRows(r, upTo(1, n)...), newBatches(r, 1, n)
		rows.slowly(takes(time.Millisecond))
		batches.slowly(func(context.Context, []int64) error { time.Sleep(5 * time.Millisecond); return nil })
		for _, source := range []cache.Source[int64, string]{rows.source(), batches.source()} {
			long := ttl(10_000 * time.Hour) // the first of the keys to expire does so after some hours
			a, b := open(r, source, long), open(r, source, long)
			var both sync.WaitGroup
			for _, c := range []*probe[int64, string]{a, b} {
				both.Go(func() { c.warmed(r, upTo(1, n), cache.WarmOptions{}) })
			}
			both.Wait()
			b.warmed(r, upTo(1, n), cache.WarmOptions{}) // again
			b.givesMany(r, upTo(1, n), "v1")
			if err := r.rdb.FlushAll(r.ctx).Err(); err != nil {
				r.Fatal(err)
			}
		}
		if all := rows.all(); all != n {
			r.Errorf("%d loads of %d keys", all, n)
		}
		batches.loadedOnce(r, n)
	})
}

// What one Warm has loaded must not expire together: with the jitter of other loads all
// of it would end within the last tenth of the TTL.
func TestWhatIsWarmedExpiresAllOverItsTTL(t *testing.T) {
	for _, c := range []cell{{redis: "mini"}, {redis: "none", local: true}} {
		t.Run(c.String(), func(t *testing.T) {
			inCells(t, []cell{c}, func(r *rig) {
				const n = 2000
				source := newBatches(r, 1, n)
				c := open(r, source.source(), hard, ttl(20*time.Second), func(o *cache.Options) {
					if r.local {
						o.Local.MaxBytes = 8 << 20 // the rig's 1 MiB has no room for n entries
					}
				})
				c.warmed(r, upTo(1, n), cache.WarmOptions{})
				for range 3 {
					time.Sleep(5 * time.Second)
					source.forget()
					c.warmed(r, upTo(1, n), cache.WarmOptions{})
					// A quarter ends in the first 5 s. Of the keys loaded anew more end soon.
					if anew, _ := source.loads(); len(anew) < n/5 || len(anew) > n/2 {
						r.Errorf("%d of %d have ended in 5 s of 20 s", len(anew), n)
					}
				}
			})
		})
	}
}

func TestWarmKeepsToItsRateAndConcurrency(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source := newRows(r, upTo(1, 500)...)
		source.slowly(takes(100 * time.Millisecond))
		b := redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 64}))
		c, began := open(r, source.source(), func(o *cache.Options) { o.Breaker = b }), time.Now()
		c.warmed(r, upTo(1, 300), cache.WarmOptions{Rate: 100, Concurrency: 20})
		if took := time.Since(began); took < 2990*time.Millisecond || took > 3200*time.Millisecond {
			r.Errorf("300 keys at 100 a second take %v", took)
		}
		began = time.Now()
		c.warmed(r, upTo(301, 500), cache.WarmOptions{Concurrency: 20})
		if took, most := time.Since(began), source.allAtOnce(); took < time.Second || took > 1100*time.Millisecond || most != 20 {
			r.Errorf("200 loads of 100 ms, %d at a time, take %v", most, took)
		}
	})
}

func TestWarmEndsWithItsContext(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r)
		source.slowly(takes(100 * time.Millisecond))
		c, began := open(r, source.source()), time.Now()
		ctx, cancel := context.WithTimeout(r.ctx, 1050*time.Millisecond)
		defer cancel()
		err := c.Warm(ctx, func(yield func(int64) bool) {
			for key := int64(1); yield(key); key++ {
			}
		}, cache.WarmOptions{Rate: -1})
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 1050*time.Millisecond {
			r.Errorf("it ends after %v with %v", took, err)
		}
		var batch *cache.BatchError[int64]
		if errors.As(err, &batch) {
			r.Errorf("keys that were not tried have failed: %v", err)
		}
		if n := source.all(); n > 8*11 {
			r.Errorf("%d loads", n)
		}
	})
}

func TestAWarmOfAClosedCacheEnds(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source := newRows(r)
		source.slowly(takes(100 * time.Millisecond))
		c := open(r, source.source())
		ended := make(chan error, 1)
		go func() { ended <- c.Warm(r.ctx, slices.Values(upTo(1, 10_000)), cache.WarmOptions{}) }()
		time.Sleep(time.Second)
		if err := c.Close(); err != nil {
			r.Error(err)
		}
		if err := <-ended; !errors.Is(err, cache.ErrClosed) {
			r.Errorf("Warm: %v", err)
		}
	})
}

// Errors are all counted, and a hundred of them kept.
func TestTheErrorsOfAWarmAreCounted(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, upTo(1, 300)...)
		source.slowly(func(_ context.Context, key int64) error {
			if key%2 == 0 {
				return errBroken
			}
			return nil
		})
		c := open(r, source.source())
		err := c.Warm(r.ctx, slices.Values(upTo(1, 300)), cache.WarmOptions{Rate: -1})
		var batch *cache.BatchError[int64]
		if !errors.Is(err, errBroken) || !errors.As(err, &batch) || len(batch.Causes) != 100 || batch.Others != 50 {
			r.Errorf("want 150 errors, got %v", err)
		}
		if n := source.all(); n != 300 {
			r.Errorf("%d loads: a load that failed must not be tried again", n)
		}
	})
}

// The breaker allows less than the Warm would run: nothing fails for that.
func TestAWarmWithMoreCallsThanTheBreakerAllowsLoadsAll(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source := newRows(r, upTo(1, 400)...)
		source.slowly(takes(100 * time.Millisecond))
		b := redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 8, MaxBackground: 2}))
		c := open(r, source.source(), func(o *cache.Options) { o.Breaker = b })
		c.warmed(r, upTo(1, 400), cache.WarmOptions{})
		if n, most := source.all(), source.allAtOnce(); n != 400 || most != 2 {
			r.Errorf("%d loads, %d at a time", n, most)
		}
	})
}

// While reads need all that the source can do, Warm stands back, and goes on after them.
func TestWarmGivesWayToReads(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source, gate := newRows(r, upTo(1, 104)...), newLatch()
		b := redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 4}))
		c := open(r, source.source(), func(o *cache.Options) { o.Breaker = b })
		source.slowly(gate.wait)
		for key := range int64(4) {
			c.getting(r.ctx, 101+key)
			gate.arrived(r)
		}
		source.slowly(nil)
		ended := make(chan struct{})
		go func() { c.warmed(r, upTo(1, 100), cache.WarmOptions{}); close(ended) }()
		time.Sleep(time.Second)
		if n := source.all(); n != 4 {
			r.Errorf("%d loads beside four reads that take all there is", n-4)
		}
		close(gate.open)
		<-ended
		if n := source.all(); n != 104 {
			r.Errorf("%d loads of 104 keys", n)
		}
	})
}

// Every process would load everything.
func TestWarmLoadsNothingWhileRedisDoesNotAnswer(t *testing.T) {
	inBubble(t, cell{local: true}, func(r *rig, m *redistest.MiniServer) {
		source := newRows(r, upTo(1, 100)...)
		c := open(r, source.source())
		m.Server().SetPreHook(func(p *server.Peer, _ string, _ ...string) bool {
			p.WriteError("LOADING Redis is loading the dataset in memory")
			return true
		})
		err := c.Warm(r.ctx, slices.Values(upTo(1, 100)), cache.WarmOptions{Rate: -1})
		if !errors.Is(err, cache.ErrUnavailable) || source.all() != 0 {
			r.Errorf("%d loads, %v", source.all(), err)
		}
		ended := make(chan struct{})
		go func() { c.warmed(r, upTo(1, 100), cache.WarmOptions{}); close(ended) }()
		time.Sleep(time.Second)
		m.Server().SetPreHook(nil) // what was put off is loaded then
		<-ended
		if n := source.all(); n != 100 {
			r.Errorf("%d loads of 100 keys", n)
		}
	})
}

// A Get that meets a key being warmed waits for its load, and a key that somebody loads
// is skipped.
func TestReadsAndWarmShareLeases(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source, gate := newRows(r, 1, 2), newLatch()
		source.slowly(gate.wait)
		c := open(r, source.source())
		read := c.getting(r.ctx, 2)
		gate.arrived(r)
		ended := make(chan struct{})
		go func() { c.warmed(r, []int64{1, 2}, cache.WarmOptions{}); close(ended) }()
		gate.arrived(r)
		synctest.Wait()
		late := c.getting(r.ctx, 1)
		synctest.Wait()
		close(gate.open)
		for _, got := range []gotten{<-read, <-late} {
			if got.value != "v1" || got.err != nil {
				r.Errorf("%+v", got)
			}
		}
		<-ended
		if n := source.all(); n != 2 {
			r.Errorf("%d loads of two keys", n)
		}
	})
}

// Redis has come back empty, and this process has a key in its local tier. Warm counted
// the key as loaded, and loaded nothing.
func TestWarmFillsRedisWithWhatTheProcessHas(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		if err := r.rdb.FlushAll(r.ctx).Err(); err != nil {
			r.Fatal(err)
		}
		c.warmed(r, []int64{1}, cache.WarmOptions{})
		if n := source.all(); n != 2 {
			r.Errorf("%d loads", n)
		}
		if n := r.rdb.Exists(r.ctx, valueKey(1)).Val(); n != 1 {
			r.Errorf("in Redis: %v", r.rdb.Keys(r.ctx, "*").Val())
		}
	})
}

// A function of the user's that panics or ends its goroutine fails its key, and the Warm goes
// on: without a goroutine of its own for each call, the key was counted by nothing.
func TestAWarmCountsTheKeysOfFunctionsThatDoNotReturn(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		rows := newRows(r, upTo(1, 4)...)
		source := rows.source()
		source.Key = func(key int64) string {
			if key == 2 {
				panic("no id")
			}
			return strconv.FormatInt(key, 10)
		}
		c := open(r, source, func(o *cache.Options) { o.Codec = ending{} })
		rows.put(3, "Goexit")
		var done, failed int
		err := c.Warm(r.ctx, slices.Values(upTo(1, 4)), cache.WarmOptions{Progress: func(d, f int) { done, failed = d, f }})
		var causes *cache.BatchError[int64]
		if !errors.As(err, &causes) {
			r.Fatalf("Warm: %v", err)
		}
		for key, value := range map[int64]string{2: "no id", 3: "runtime.Goexit was called"} {
			var panicked *cache.PanicError
			if !errors.As(causes.Causes[key], &panicked) || panicked.Value != value {
				r.Errorf("%d: %v", key, causes.Causes[key])
			}
		}
		if done != 2 || failed != 2 {
			r.Errorf("of four keys %d are done and %d have failed", done, failed)
		}
	})
}

// ending is a codec of texts that ends the goroutine when it meets "Goexit".
type ending struct{}

func (ending) Marshal(v any) ([]byte, error) {
	text := v.(string)
	if text == "Goexit" {
		runtime.Goexit()
	}
	return []byte(text), nil
}

func (ending) Unmarshal(data []byte, v any) error { *v.(*string) = string(data); return nil }
