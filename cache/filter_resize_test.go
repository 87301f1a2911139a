package cache_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A fleet replaces a full filter by a larger one while it goes on to insert rows.
//
// With the old runbook (another Name, Rebuild, deploy) a process of the old release adds a
// row to the old filter alone, and one of the new release denies it before it asks anybody;
// FilterWrong cannot see that. In the order of docs/filter.md each process finds the
// rows of all others in all deployments, whichever two releases run side by side.
func TestAFilterIsReplacedWithoutHidingARow(t *testing.T) {
	r := onServer(t, redistest.Start(t), cell{redis: "real"})
	filter := func(name string, capacity uint64) *bloom.Filter {
		f := must(bloom.Open(r.ctx, r.client(), bloom.Options{
			Name: name, Capacity: capacity, FalsePositiveRate: 1e-6, Confirm: true, MaxLag: 10 * time.Second, MaxTransaction: 100 * time.Millisecond,
		}))
		r.Cleanup(func() { _ = f.Close() })
		return f
	}
	small := func() *bloom.Filter { return filter("small", 1000) }
	large := func() *bloom.Filter { return filter("large", 10_000) }
	table, known, next := newRows(r, 1), []int64{1}, int64(100)
	process := func(f cache.Filter) *probe[int64, string] {
		return open(r, table.source(), func(o *cache.Options) { o.Filter = f })
	}
	rebuilt := func(c *probe[int64, string]) *probe[int64, string] {
		if err := c.RebuildFilter(r.ctx, all(known...)); err != nil {
			r.Fatal(err)
		}
		return c
	}
	// meet inserts a row by each process, and counts how often another one denies it.
	meet := func(processes ...*probe[int64, string]) (denied int) {
		for _, writer := range processes {
			next++
			known = append(known, next)
			key := next
			if err := writer.Write(r.ctx, []int64{key}, func(context.Context) error { table.put(key, "new"); return nil }); err != nil {
				r.Fatal(err)
			}
			for _, reader := range processes {
				if _, err := reader.Get(r.ctx, key); errors.Is(err, cache.ErrNotFound) {
					denied++
				} else if err != nil {
					r.Error(err)
				}
			}
		}
		return denied
	}

	old := rebuilt(process(small()))
	if n := meet(old, rebuilt(process(large()))); n != 2 {
		t.Errorf("another Name, as it is: %d rows denied, want two: each process hides its own from the other", n)
	}

	first := process(both{small(), large()})
	if n := meet(old, first); n != 0 {
		t.Errorf("old and first deployment: %d rows denied", n)
	}
	second := rebuilt(process(both{large(), small()}))
	if n := meet(first, second); n != 0 {
		t.Errorf("first and second deployment: %d rows denied", n)
	}
	third := process(large())
	if n := meet(second, third); n != 0 {
		t.Errorf("second and third deployment: %d rows denied", n)
	}
	r.eventually("the new filter answers", func() bool { // it abstains while its copy lags, as on a starved machine
		absent, err := third.Fetch(r.ctx, 99)
		return errors.Is(err, cache.ErrNotFound) && absent.Tier == cache.TierFilter
	})
}
