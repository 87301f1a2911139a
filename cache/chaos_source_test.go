package cache_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A loader that panics or ends its goroutine, over and over and for many callers at
// a time, fails those and nothing else: no lease, place or goroutine stays behind.
func TestChaosLoadersPanicAndEnd(t *testing.T) {
	t.Parallel()
	const callers = 32
	each := redistest.Pick(30, 100_000/callers)
	r := onServer(t, redistest.Start(t), cell{redis: "real"})
	source := newRows(r)
	source.put(1, "v1")
	bug := func(_ context.Context, key int64) error {
		if key%2 == 0 {
			runtime.Goexit()
		}
		panic("bug in the loader")
	}
	source.slowly(bug)
	c := open(r, source.source(), unheld, calmly)
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := range each {
				_, err := c.Get(r.ctx, int64(1000+caller*each+i))
				var panicked *cache.PanicError
				if !errors.As(err, &panicked) {
					r.Errorf("Get: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if n := source.all(); n != callers*each {
		t.Errorf("%d loads of %d", n, callers*each)
	}
	// Nor does a breaker stay half-open, whatever becomes of the call that tries.
	b := redistest.Must(breaker.New(breaker.Options{MinRequests: 1, Cooldown: time.Millisecond}))
	tried := open(r, source.source(), unheld, calmly, func(o *cache.Options) { o.Name, o.Breaker = "tried", b })
	for key := range int64(redistest.Pick(50, 2000)) {
		_, _ = tried.Get(r.ctx, 1000+key)
		time.Sleep(2 * time.Millisecond)
	}
	source.slowly(nil)
	began := time.Now()
	c.gives(r, 1, "v1")
	took := time.Since(began)
	r.eventually("the breaker closes", func() bool {
		got, err := tried.Get(r.ctx, 1)
		return err == nil && got == "v1"
	})
	s := c.Stats().Breaker
	t.Logf("%d loads ended in a panic or Goexit; the next Get took %v; %+v", s.Failures, took, s)
	if s.Running != 0 || s.Failures != uint64(callers*each) {
		t.Errorf("%+v", s)
	}
}

// Callers who hang up in mid-load, ten thousand of them: whoever came with them gets
// the answer of the one load, and the breaker hears nothing of it.
func TestChaosCallersHangUp(t *testing.T) {
	t.Parallel()
	keys := redistest.Pick(200, 10_000)
	r := onServer(t, redistest.Start(t), cell{redis: "real"})
	var mu sync.Mutex
	gates := map[int64]*latch{} // guarded by mu
	gateOf := func(key int64) *latch {
		mu.Lock()
		defer mu.Unlock()
		if gates[key] == nil {
			gates[key] = newLatch()
		}
		return gates[key]
	}
	source := newRows(r)
	source.slowly(func(ctx context.Context, key int64) error { return gateOf(key).wait(ctx, key) })
	b := redistest.Must(breaker.New(breaker.Options{}))
	c := open(r, source.source(), calmly, func(o *cache.Options) { o.Breaker = b })
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			for key := int64(worker); key < int64(keys); key += 16 {
				source.put(key, "v1")
				ctx, cancel := context.WithCancel(r.ctx)
				left, stayed := make(chan error), make(chan struct{})
				go func() {
					_, err := c.Get(ctx, key)
					left <- err
				}()
				gateOf(key).arrived(r)
				go func() {
					c.gives(r, key, "v1")
					close(stayed)
				}()
				cancel()
				if err := <-left; !errors.Is(err, context.Canceled) {
					r.Errorf("who left gets %v", err)
				}
				close(gateOf(key).open)
				<-stayed
			}
		})
	}
	wg.Wait()
	s := b.Stats()
	t.Logf("%d callers hung up: %d loads, %+v", keys, source.all(), s)
	if n := source.all(); n != keys || s.State != breaker.Closed || s.Failures+s.Excluded != 0 {
		t.Errorf("%d loads for %d keys, %+v", n, keys, s)
	}
}

// The source takes longer than any caller waits. Were a load to end with its caller,
// nothing would ever be cached and nobody ever answered.
func TestChaosNobodyWaitsAsLongAsTheSourceTakes(t *testing.T) {
	t.Parallel()
	const atMost = 8
	keys := redistest.Pick(60, 200)
	takes, patience := 150*time.Millisecond, 100*time.Millisecond
	r := onServer(t, redistest.Start(t), cell{redis: "real"})
	source := newRows(r)
	for key := range int64(keys) {
		source.put(key, "v1")
	}
	source.slowly(func(context.Context, int64) error { time.Sleep(takes); return nil })
	c := open(r, source.source(), calmly, func(o *cache.Options) {
		o.Breaker = redistest.Must(breaker.New(breaker.Options{MaxConcurrent: atMost}))
	}, unheld)
	began := time.Now()
	// The few callers are late for a CPU less often: 64 of them are, by more than their patience.
	readers := crowd{caches: []*probe[int64, string]{c}, callers: 8, pause: 10 * time.Millisecond, patience: patience,
		pick: func() int64 { return rand.Int64N(int64(keys)) }}
	home := readers.gather(r)
	r.eventually("all is loaded", func() bool { return source.all() >= keys && c.Stats().Breaker.Running == 0 })
	loaded := time.Since(began)
	first := home()
	var after visits
	// 100 ms are short on a busy machine, so it may take more than one look. If nothing had been cached,
	// no look would find that anybody is answered.
	r.eventually("nearly everybody is answered", func() bool {
		home := readers.gather(r)
		time.Sleep(redistest.Pick(300*time.Millisecond, 3*time.Second))
		after = home()
		return after.answered() >= 0.9
	})
	// How many loads there are depends on the machine: a caller with 100 ms gives Redis half of them,
	// and goes to the source without it when these are over.
	t.Logf("all loaded after %v, %.1f %% of the visits until then answered; %d loads of %d keys, at most %d at one time; then %v",
		loaded, 100*first.answered(), source.all(), keys, source.allAtOnce(), after)
	if n := source.allAtOnce(); n > atMost {
		t.Errorf("%d loads at one time", n)
	}
}

// Everything cached is lost and the source is ten times slower for a while. When that
// is over, so is the trouble: no queue, retry or breaker keeps it going.
func TestChaosAFlushWithASlowSource(t *testing.T) {
	t.Parallel()
	const processes, keys, atMost = 4, 2000, 8
	length := redistest.Pick(600*time.Millisecond, 5*time.Second)
	r := onServer(t, redistest.Start(t), cell{redis: "real"})
	source := newRows(r)
	for key := range int64(keys) {
		source.put(key, "v1")
	}
	takes := func(d time.Duration) func(context.Context, int64) error {
		return func(context.Context, int64) error { time.Sleep(d); return nil }
	}
	source.slowly(takes(5 * time.Millisecond))
	var caches []*probe[int64, string]
	for range processes {
		caches = append(caches, open(r, source.source(), calmly, func(o *cache.Options) {
			o.Breaker = redistest.Must(breaker.New(breaker.Options{MaxConcurrent: atMost}))
		}))
	}
	for key := range int64(keys) {
		if err := caches[0].Set(r.ctx, key, "v1"); err != nil {
			t.Fatal(err)
		}
	}
	readers := crowd{caches: caches, callers: 16, pause: 30 * time.Millisecond, patience: 100 * time.Millisecond, pick: func() int64 { return rand.Int64N(keys) }}
	home := readers.gather(r)
	time.Sleep(length / 2)
	source.forget()
	began := time.Now()
	source.slowly(takes(50 * time.Millisecond))
	if err := r.rdb.FlushAll(r.ctx).Err(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(length)
	source.slowly(takes(5 * time.Millisecond))
	ended := time.Now()
	time.Sleep(redistest.Pick(time.Second, 10*time.Second))
	got := home()
	t.Logf("before: %v", got.between(began.Add(-time.Minute), began))
	t.Logf("meanwhile: %v", got.between(began, ended))
	t.Logf("after: %v; 99 %% answered %v after the end; %d loads of %d keys, at most %d at one time, %d of one key",
		got.between(ended, time.Now()), got.recovered(ended), source.all(), keys, source.allAtOnce(), source.atOnce())
	if n := source.allAtOnce(); n > processes*atMost {
		t.Errorf("%d loads at one time", n)
	}
	lone := 0 // loads without a lease: of callers for whom Redis was late
	for _, c := range caches {
		lone += int(c.Stats().Degraded)
	}
	if n := source.all(); n-lone > keys*102/100 {
		t.Errorf("%d loads of %d keys, %d of them without a lease", n, keys, lone)
	}
	if took := got.recovered(ended); took > 5*time.Second {
		t.Errorf("99 %% are answered only %v after the end", took)
	}
}

// What has been read goes on to be answered while the source fails, is ten times
// slower, or hangs; and the source is spared.
func TestChaosTheSourceIsOfNoUseUnderLoad(t *testing.T) {
	t.Parallel()
	const processes, keys, atMost = 4, 200, 8
	length := redistest.Pick(800*time.Millisecond, 20*time.Second)
	for name, trouble := range map[string]struct {
		spoil func(ctx context.Context, key int64) error
		opens bool    // the breakers
		rate  float64 // at most so many loads a second in each process after that
	}{
		"fails":            {func(context.Context, int64) error { return errBroken }, true, 10},
		"ten times slower": {func(context.Context, int64) error { time.Sleep(20 * time.Millisecond); return nil }, false, atMost / 0.02},
		"hangs":            {func(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() }, true, 10},
	} {
		if redistest.Pick(name != "fails", false) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := onServer(t, redistest.Start(t), cell{redis: "real", local: true})
			source := newRows(r)
			for key := range int64(keys) {
				source.put(key, "v1")
			}
			source.slowly(func(context.Context, int64) error { time.Sleep(2 * time.Millisecond); return nil })
			var caches []*probe[int64, string]
			for range processes {
				caches = append(caches, open(r, source.source(), calmly, func(o *cache.Options) {
					o.TTL, o.Local.TTL = 500*time.Millisecond, 200*time.Millisecond
					o.Breaker = redistest.Must(breaker.New(breaker.Options{
						MaxConcurrent: atMost, MinRequests: 8, Window: 2 * time.Second, Timeout: 500 * time.Millisecond, Cooldown: time.Second,
					}))
				}))
			}
			for key := range int64(keys) {
				for _, c := range caches {
					c.gives(r, key, "v1")
				}
			}
			home := crowd{caches: caches, callers: 16, pause: 30 * time.Millisecond, patience: 3 * time.Second,
				pick: func() int64 { return rand.Int64N(keys) }}.gather(r)
			source.slowly(trouble.spoil)
			began := time.Now()
			r.eventually("the breakers open", func() bool {
				return !trouble.opens || !slices.ContainsFunc(caches, func(c *probe[int64, string]) bool { return c.Stats().Breaker.State != breaker.Open })
			})
			known, loads := time.Now(), source.all()
			time.Sleep(length)
			rate := float64(source.all()-loads) / time.Since(known).Seconds() / processes
			for key := range int64(keys) {
				source.put(key, "v2")
			}
			source.slowly(nil)
			ended := time.Now()
			r.eventually("what is new is read", func() bool {
				got, err := caches[0].Get(r.ctx, 1)
				return err == nil && got == "v2"
			})
			again := time.Since(ended)
			got := home().between(began, ended)
			t.Logf("%v; known after %v; %.1f loads a second and process, at most %d at one time; new values %v after the end", got, known.Sub(began), rate, source.allAtOnce(), again)
			if bad := got.failed(); len(bad) > len(got)/1000 {
				t.Errorf("%d of %d Gets failed, as that of %d: %v after %v", len(bad), len(got), bad[0].key, bad[0].err, bad[0].took)
			}
			if rate > trouble.rate {
				t.Errorf("%.1f loads a second, more than %.1f", rate, trouble.rate)
			}
			if n := source.allAtOnce(); n > processes*atMost {
				t.Errorf("%d loads at one time", n)
			}
		})
	}
}
