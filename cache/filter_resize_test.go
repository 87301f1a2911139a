package cache_test

import (
	"context"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A fleet makes its filter larger by a deployment with another Capacity: the next Rebuild of
// a process of the new release resizes it for those of the old one too, and one of the old
// release, which still runs beside it, makes it small again. All insert rows all the while.
// None of them is denied by the process that has inserted it, nor by another one after MaxLag.
func TestAFleetResizesItsFilterWithoutHidingARow(t *testing.T) {
	t.Parallel()
	const lag = 200 * time.Millisecond
	r := onServer(t, redistest.Start(t), cell{redis: "real"})
	table, known, next := newRows(r), &inserts{}, atomic.Int64{}
	var filters []*bloom.Filter
	var fleet []*probe[int64, string]
	capacities := []uint64{1000, 1000, 200_000, 200_000}
	for _, capacity := range capacities {
		f := redistest.Must(bloom.Open(r.ctx, r.client(), bloom.Options{
			Name: "test", Capacity: capacity, FalsePositiveRate: 1e-6, Complete: true, MaxLag: lag, MaxTransaction: 5 * time.Second,
		}))
		r.Cleanup(func() { _ = f.Close() })
		filters = append(filters, f)
		fleet = append(fleet, open(r, table.source(), func(o *cache.Options) { o.Filter = f }))
	}
	resized := func(capacity uint64) {
		t.Helper()
		for _, f := range filters {
			r.eventually("all have it", func() bool { s := f.Stats(); return s.Capacity == capacity && !s.Abstaining })
		}
	}
	resized(1000)

	var done atomic.Bool
	var running sync.WaitGroup
	for _, c := range fleet {
		running.Go(func() {
			for ; !done.Load(); time.Sleep(rand.N(10 * time.Millisecond)) {
				key := next.Add(1)
				if err := c.Write(r.ctx, []int64{key}, func(context.Context) error { table.put(key, "new"); return nil }); err != nil {
					r.Errorf("Write(%d): %v", key, err)
					continue
				}
				if _, err := c.Get(r.ctx, key); err != nil {
					r.Errorf("of its own row %d: %v", key, err)
				}
				known.add(key)
				if key, ok := known.before(time.Now().Add(-lag)); ok {
					if _, err := c.Get(r.ctx, key); err != nil {
						r.Errorf("of row %d: %v", key, err)
					}
				}
			}
		})
	}
	for _, process := range []int{2, 1, 3} { // new, old, new
		if err := fleet[process].RebuildFilter(r.ctx, known.scan()); err != nil {
			r.Error(err)
		}
		resized(capacities[process])
	}
	done.Store(true)
	running.Wait()
	for i, f := range filters {
		r.eventually("it answers", func() bool { return !f.MayContain(r.ctx, "absent") })
		if s := f.Stats(); s.Capacity != 200_000 || s.Ids < uint64(next.Load())*9/10 {
			r.Errorf("process %d has %+v", i, s)
		}
	}
}

// inserts are the rows that were inserted, oldest first.
type inserts struct {
	mu   sync.Mutex // guards keys and at
	keys []int64
	at   []time.Time
}

func (i *inserts) add(key int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys, i.at = append(i.keys, key), append(i.at, time.Now())
}

// before returns one of the newest rows from before a moment, if there is any.
func (i *inserts) before(moment time.Time) (key int64, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	n, _ := slices.BinarySearchFunc(i.at, moment, time.Time.Compare)
	if n == 0 {
		return 0, false
	}
	return i.keys[n-1-rand.IntN(min(n, 20))], true
}

// scan yields the rows that are there when it begins, and takes its time: its Rebuild has to
// learn of the rows of that time from the log.
func (i *inserts) scan() iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		i.mu.Lock()
		keys := slices.Clone(i.keys)
		i.mu.Unlock()
		time.Sleep(200 * time.Millisecond)
		all(keys...)(yield)
	}
}
