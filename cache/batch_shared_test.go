package cache_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
)

// A key has one flight in a process, for batches and single reads together.
func TestBatchesAndSingleGetsShareFlights(t *testing.T) {
	for name, kind := range map[string]func(*batches) cache.Source[int64, string]{
		"Load": (*batches).oneByOne, "LoadMany": (*batches).source,
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, fewCells, func(r *rig) {
				source, gate := newBatches(r, 1, 6), make(chan struct{})
				source.slowly(func(context.Context, []int64) error { <-gate; return nil })
				c := open(r, kind(source))
				var wg sync.WaitGroup
				asked := func(n uint64, call func()) {
					wg.Go(call)
					r.eventually("it waits", func() bool { return c.Stats().Gets == n })
					time.Sleep(10 * time.Millisecond)
				}
				asked(3, func() { c.givesMany(r, upTo(1, 3), "v1") })
				asked(7, func() { c.givesMany(r, upTo(2, 5), "v1") })
				asked(8, func() { c.gives(r, 5, "v1") })
				asked(9, func() { c.gives(r, 6, "v1") })
				asked(12, func() { c.givesMany(r, upTo(4, 6), "v1") })
				close(gate)
				wg.Wait()
				source.loadedOnce(r, 6)
			})
		})
	}
}

// The process that holds the lease of a key loads it; the others wait for this load.
func TestTwoProcessesLoadTheKeysOfABatchOnce(t *testing.T) {
	inCells(t, shared, func(r *rig) {
		source := newBatches(r, 1, 100)
		source.slowly(func(context.Context, []int64) error { time.Sleep(50 * time.Millisecond); return nil })
		var wg sync.WaitGroup
		for n := range 2 {
			keys := upTo(1, 100)
			if n == 1 {
				slices.Reverse(keys)
			}
			c := open(r, source.source())
			wg.Go(func() { c.givesMany(r, keys, "v1") })
		}
		wg.Wait()
		source.loadedOnce(r, 100)
	})
}

func TestABatchWaitsForTheKeysThatAnotherProcessLoads(t *testing.T) {
	inCells(t, shared, func(r *rig) {
		source, gate := newBatches(r, 1, 10), make(chan struct{})
		source.slowly(func(_ context.Context, keys []int64) error {
			if slices.Contains(keys, 5) {
				<-gate
			}
			return nil
		})
		a, b := open(r, source.source()), open(r, source.source())
		var wg sync.WaitGroup
		wg.Go(func() { a.givesMany(r, upTo(3, 6), "v1") })
		r.eventually("the other process loads", func() bool { return a.Stats().Loads == 1 })
		wg.Go(func() { b.givesMany(r, upTo(1, 10), "v1") })
		r.eventually("the batch waits for it, and has loaded its own", func() bool {
			return b.Stats().Rebuild.Waits >= 4 && b.Stats().Loads == 1
		})
		close(gate)
		wg.Wait()
		source.loadedOnce(r, 10)
	})
}
