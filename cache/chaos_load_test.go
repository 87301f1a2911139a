package cache_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Whatever the traffic of one key, Redis sees few reads of it: when a local copy ends, each
// caller who asks before the first of them has its reply, here one or two in a process.
func TestChaosOneKeyTakesAllTraffic(t *testing.T) {
	t.Parallel()
	const processes, callers, life = 4, 2, time.Second
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	source := newRows(r, 1)
	var caches []*probe[int64, string]
	for range processes {
		c := open(r, source.source(), calmly, func(o *cache.Options) { o.Local.TTL = life })
		c.comesFrom(r, 1, cache.TierLocal)
		caches = append(caches, c)
	}
	before, began := server.Calls("getrange"), time.Now()
	var reads atomic.Int64
	var wg sync.WaitGroup
	for i := range callers * processes {
		wg.Go(func() {
			n := 0
			for ; time.Since(began) < redistest.Pick(time.Second, 10*time.Second); n++ {
				if got, err := caches[i%processes].Get(r.ctx, 1); err != nil || got != "v1" {
					r.Errorf("Get: %q, %v", got, err)
				}
			}
			reads.Add(int64(n))
		})
	}
	wg.Wait()
	seconds := time.Since(began).Seconds()
	gets := server.Calls("getrange") - before
	t.Logf("%.0f reads a second, %.2f reads in Redis a second of %d processes, %d loads", float64(reads.Load())/seconds, float64(gets)/seconds, processes, source.all())
	// A life is shorter by the jitter and by what the local tier's clock is ahead.
	if most := int64(callers * processes * (seconds/0.85 + 2)); gets > most {
		t.Errorf("%d reads in Redis in %.1f s, more than %d", gets, seconds, most)
	}
}

// Other processes invalidate faster than a subscriber can follow. What it misses it
// must not believe: when the storm is over, each cache gives what was written last.
func TestChaosAStormOfInvalidations(t *testing.T) {
	const keys, hot = 2000, 100
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	source := newRows(r)
	long := func(o *cache.Options) { o.TTL, o.Local.TTL = time.Hour, time.Hour }
	for key := range int64(keys) {
		source.put(key, "v0")
	}
	reader, writer := open(r, source.source(), calmly, long, hard), open(r, source.source(), calmly, long, hard)
	for key := range int64(hot) {
		reader.gives(r, key, "v0")
	}
	heap, sent, began := heapInUse(), server.Calls("publish"), time.Now()
	end := began.Add(redistest.Pick(time.Second, 5*time.Second))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			others := make([]int64, 500)
			for time.Now().Before(end) {
				for i := range others {
					others[i] = hot + rand.Int64N(keys-hot)
				}
				if err := writer.Invalidate(r.ctx, others...); err != nil {
					r.Errorf("Invalidate: %v", err)
				}
			}
		})
	}
	rounds := 0
	var worst time.Duration
	for ; time.Now().Before(end); rounds++ {
		key, value := int64(rounds%hot), fmt.Sprint("v", 1+rounds/hot)
		source.put(key, value)
		if err := writer.Invalidate(r.ctx, key); err != nil {
			t.Fatal(err)
		}
		written := time.Now()
		r.eventually("the other cache has it", func() bool {
			began := time.Now()
			got, err := reader.Get(r.ctx, key)
			if err != nil {
				r.Errorf("Get: %v", err)
			}
			if got != value {
				worst = max(worst, began.Sub(written))
			}
			return got == value
		})
	}
	wg.Wait()
	messages := server.Calls("publish") - sent
	t.Logf("%d messages, %.0f a second; %d updates, an old value was read until %v after one; %+d KiB of heap; %+v",
		messages, float64(messages)/time.Since(began).Seconds(), rounds, worst, (heapInUse()-heap)>>10, reader.Stats().LocalTier)
	if worst > 15*time.Second { // it would be an hour
		t.Errorf("an old value was read until %v after its end", worst)
	}
	if more := heapInUse() - heap; more > 16<<20 {
		t.Errorf("%d MiB of heap more", more>>20)
	}
}

// A key is asked for, is not there, and comes into being, beside readers of the same
// key everywhere. Once the write has returned, its process says "not there" no more,
// and the others do not for longer than a message takes.
func TestChaosKeysComeIntoBeing(t *testing.T) {
	t.Parallel()
	keys := redistest.Pick(100, 10_000)
	r := onServer(t, redistest.Start(t), cell{redis: "real", local: true})
	source := newRows(r)
	writer, other := open(r, source.source(), calmly), open(r, source.source(), calmly)
	var late atomic.Int64
	lag := redistest.MeasureLag(t)
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for key := int64(worker); key < int64(keys); key += 8 {
				quit := make(chan struct{})
				var readers sync.WaitGroup
				for _, c := range []*probe[int64, string]{writer, other} {
					_, _ = c.Get(r.ctx, key)
					readers.Go(func() {
						for {
							select {
							case <-quit:
								return
							case <-time.After(100 * time.Microsecond):
								_, _ = c.Get(r.ctx, key)
							}
						}
					})
				}
				err := writer.Write(r.ctx, []int64{key}, func(context.Context) error { source.put(key, "v1"); return nil })
				if err != nil {
					r.Errorf("Write: %v", err)
				}
				written := time.Now()
				writer.gives(r, key, "v1")
				r.eventually("the other process has it", func() bool {
					began := time.Now()
					_, err := other.Get(r.ctx, key)
					if err != nil {
						late.Store(max(late.Load(), int64(began.Sub(written))))
					}
					return err == nil
				})
				close(quit)
				readers.Wait()
			}
		})
	}
	wg.Wait()
	t.Logf("%d keys; another process said \"not there\" until %v after the write", keys, time.Duration(late.Load()))
	if took := time.Duration(late.Load()); took > lag.Allow(4*time.Second) { // it would be NullTTL, 30 s
		t.Errorf("another process said \"not there\" until %v after the write", took)
	}
}

// A hundred thousand keys that were stored together end together, and come back to the
// source over a time instead of at once.
func TestChaosManyKeysEndTogether(t *testing.T) {
	redistest.Long(t)
	const keys, life, length = 100_000, 30 * time.Second, 75 * time.Second
	r := onServer(t, redistest.Start(t), cell{redis: "real", local: true})
	source := newRows(r)
	var mu sync.Mutex
	var loaded []time.Time // guarded by mu
	source.slowly(func(context.Context, int64) error {
		mu.Lock()
		loaded = append(loaded, time.Now())
		mu.Unlock()
		time.Sleep(2 * time.Millisecond)
		return nil
	})
	c := open(r, source.source(), calmly, ttl(life))
	var wg sync.WaitGroup
	for worker := range 32 {
		wg.Go(func() {
			for key := int64(worker); key < keys; key += 32 {
				source.put(key, "v1")
				if err := c.Set(r.ctx, key, "v1"); err != nil {
					r.Errorf("Set: %v", err)
				}
			}
		})
	}
	wg.Wait()
	home := crowd{caches: []*probe[int64, string]{c}, callers: 64, pause: 3 * time.Millisecond, patience: time.Second, pick: func() int64 { return rand.Int64N(keys) }}.gather(r)
	time.Sleep(length)
	got := home()
	mu.Lock()
	defer mu.Unlock()
	worst := 0
	for i, j := 0, 0; j < len(loaded); j++ {
		for loaded[j].Sub(loaded[i]) > time.Second {
			i++
		}
		worst = max(worst, j-i+1)
	}
	even := keys / life.Seconds() // each key once in each TTL, one after the other
	t.Logf("%v; %d loads, %d in one second at the most, where even ones were %.0f; %d at one time", got, len(loaded), worst, even, source.allAtOnce())
	if float64(worst) > 2*even {
		t.Errorf("%d loads in one second", worst)
	}
	if bad := got.failed(); len(bad) > 0 {
		t.Errorf("%d Gets failed, as that of %d: %v", len(bad), bad[0].key, bad[0].err)
	}
}
