package cache_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

// What was stored together must not come back to the source together. Without the
// bound on refreshes, or with values that end with their TTL, one of the tenths of a
// second sees thousands of loads. Nor may a key be loaded again soon after it was: a value
// lives for nine tenths of its TTL at least, and an early refresh comes in its second half.
func TestKeysThatEndTogetherDoNotReachTheSourceTogether(t *testing.T) {
	t.Parallel()
	const keys, readers = 1500, 64
	length := redistest.Pick(3*time.Second, 8*time.Second)
	r := onServer(t, redistest.Start(t), cell{redis: "real", local: true, breaker: true})
	all := make([]int64, keys)
	for i := range all {
		all[i] = int64(i)
	}
	source := newRows(r, all...)
	var mu sync.Mutex
	var loaded []time.Time          // guarded by mu
	lastOf := map[int64]time.Time{} // each key's last load; guarded by mu
	source.slowly(func(_ context.Context, key int64) error {
		now := time.Now()
		mu.Lock()
		loaded = append(loaded, now)
		if last, ok := lastOf[key]; ok && now.Sub(last) < 700*time.Millisecond {
			r.Errorf("key %d was loaded again %v after it was", key, now.Sub(last))
		}
		lastOf[key] = now
		mu.Unlock()
		time.Sleep(5 * time.Millisecond)
		return nil
	})
	c := open(r, source.source(), ttl(2*time.Second))
	for _, key := range all {
		if err := c.Set(r.ctx, key, "v1"); err != nil {
			r.Fatal(err)
		}
	}
	took := make([][]time.Duration, readers)
	end := time.Now().Add(length)
	var wg sync.WaitGroup
	for reader := range readers {
		wg.Go(func() {
			for began := time.Now(); began.Before(end); {
				if got, err := c.Get(r.ctx, rand.Int64N(keys)); err != nil || got != "v1" {
					r.Errorf("Get: %q, %v", got, err)
				}
				now := time.Now()
				took[reader] = append(took[reader], now.Sub(began))
				began = now
			}
		})
	}
	wg.Wait()
	worst := 0
	mu.Lock()
	defer mu.Unlock()
	for i, j := 0, 0; j < len(loaded); j++ {
		for loaded[j].Sub(loaded[i]) > 100*time.Millisecond {
			i++
		}
		worst = max(worst, j-i+1)
	}
	// 16 at a time of 5 ms each are 320 in a tenth of a second.
	if worst > 400 {
		r.Errorf("%d loads within a tenth of a second", worst)
	}
	if most := (int(length/(2*time.Second)) + 1) * keys; len(loaded) > most {
		r.Errorf("%d loads, more than each key once in each TTL that has begun", len(loaded))
	}
	waits := slices.Concat(took...)
	slices.Sort(waits)
	r.Logf("%d loads, %d within a tenth of a second at the most; %d reads, p99 %v, p99.9 %v; stats %+v",
		len(loaded), worst, len(waits), waits[len(waits)*99/100], waits[len(waits)*999/1000], c.Stats())
}
