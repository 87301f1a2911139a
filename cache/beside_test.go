package cache_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
)

func takes(d time.Duration) func(context.Context, int64) error {
	return func(context.Context, int64) error { time.Sleep(d); return nil }
}

// readers ask one key again and again until stop is called.
func readers(r *rig, caches []*probe[int64, string], n int, check func(value string, err error)) (stop func()) {
	ctx, cancel := context.WithCancel(r.ctx)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for ctx.Err() == nil {
				check(caches[i%len(caches)].Get(r.ctx, 1))
				time.Sleep(time.Millisecond)
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// Each flight of 64 readers would load for itself while a write of two seconds holds
// their key: some hundred loads a second, on the key that the database is busy with.
// With what one of them has loaded shared, it is one a second, in all processes.
func TestAHotKeyIsLoadedAboutOnceASecondWhileItIsWritten(t *testing.T) {
	cells := []cell{{redis: "mini", local: true}, {redis: "real"}, {redis: "none", local: true}}
	inCells(t, cells, func(r *rig) {
		source := newRows(r, 1)
		source.slowly(takes(5 * time.Millisecond))
		caches := []*probe[int64, string]{open(r, source.source())}
		if r.rdb != nil {
			caches = append(caches, open(r, source.source()))
		}
		stop := readers(r, caches, 16, func(value string, err error) {
			if err != nil || value != "v1" && value != "v2" {
				r.Errorf("%q, %v", value, err)
			}
		})
		before := source.loads(1)
		err := caches[0].Write(r.ctx, []int64{1}, func(context.Context) error {
			time.Sleep(1500 * time.Millisecond)
			source.put(1, "v2")
			time.Sleep(500 * time.Millisecond)
			return nil
		})
		if err != nil {
			r.Error(err)
		}
		loads := source.loads(1) - before
		for _, c := range caches {
			c.gives(r, 1, "v2")
		}
		stop()
		// Of the first load, and of those after one and two seconds, each process may
		// have one.
		if most := 3 * len(caches); loads > most {
			r.Errorf("%d loads in two seconds, want %d at most", loads, most)
		}
	})
}

func TestAHotKeyIsLoadedAboutOnceASecondWhileReplicasLag(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "real"}}, func(r *rig) {
		source := newRows(r, 1)
		source.slowly(takes(5 * time.Millisecond))
		c := open(r, source.source(), func(o *cache.Options) { o.ReplicaLag = 2 * time.Second })
		if err := c.Invalidate(r.ctx, 1); err != nil {
			r.Fatal(err)
		}
		began := time.Now()
		stop := readers(r, []*probe[int64, string]{c}, 16, func(value string, err error) {
			if err != nil || value != "v1" && (value != "v2" || time.Since(began) < time.Second) {
				r.Errorf("%q, %v", value, err)
			}
		})
		time.Sleep(1500 * time.Millisecond)
		source.put(1, "v2") // comes to the replica
		time.Sleep(time.Until(began.Add(2100 * time.Millisecond)))
		c.gives(r, 1, "v2")
		stop()
		if loads := source.loads(1); loads > 4 {
			r.Errorf("%d loads in two seconds", loads)
		}
	})
}
