package feedtest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// longBound is how much the heap may grow while a transaction of any size is followed, in bytes.
const longBound = 32 << 20

// ALongTransaction lets Follow process a transaction that inserts many rows and one that deletes
// them all, and checks that the heap does not grow with them. 5,000 rows would fit into the
// bound, so only LEVEE_LONG makes this a real check.
func ALongTransaction(t *testing.T, d Database, insert func(rows int), remove func()) {
	rows := redistest.Pick(5_000, 1_000_000)
	c := d.process(t, redistest.Start(t))
	ctx, cancel := context.WithCancel(t.Context())
	feed := d.Feed()
	var follower sync.WaitGroup
	follower.Go(func() { _ = cache.Follow(ctx, feed, c.Route(d.Table, nil)) })
	defer follower.Wait()
	defer cancel()
	redistest.Eventually(t, 30*time.Second, "the feed is followed", func() bool { return c.Stats().Follow.Following })
	before, peak := inUse(), uint64(0)
	began, watching := time.Now(), make(chan struct{})
	stop := sync.OnceFunc(func() { close(watching) })
	defer stop()
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-watching:
				return
			case <-time.After(5 * time.Millisecond):
				peak = max(peak, inUse())
			}
		}
	})
	for n, write := range []func(){func() { insert(rows) }, remove} {
		write()
		redistest.Eventually(t, 5*time.Minute, fmt.Sprintf("transaction %d is dealt with", n), func() bool {
			return c.Stats().Follow.Changes >= uint64((n+1)*rows)
		})
	}
	took := time.Since(began)
	stop()
	watch.Wait()
	s := c.Stats().Follow
	if grown := int64(peak) - int64(before); grown > longBound {
		t.Errorf("the heap has grown by %d MiB, more than %d: %+v", grown>>20, longBound>>20, s)
	}
	if s.Batches < uint64(2*rows/500) {
		t.Errorf("%d batches, want parts of at most 500 rows: %+v", s.Batches, s)
	}
	t.Logf("two transactions of %d rows: heap in use %d MiB before and %d MiB at the most, %.0f changes a second, %+v",
		rows, before>>20, peak>>20, float64(2*rows)/took.Seconds(), s)
}

// inUse returns HeapInuse, which includes garbage that is not collected yet.
func inUse() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}
