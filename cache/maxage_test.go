package cache_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

func TestAValueOlderThanMaxAgeIsLoadedAnewForEverybody(t *testing.T) {
	inCells(t, strictCells, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		source.put(1, "v2")
		c.reads(r, cache.Reads{MaxAge: time.Minute}, 1, "v1", false)
		time.Sleep(20 * time.Millisecond)
		c.reads(r, cache.Reads{MaxAge: 10 * time.Millisecond}, 1, "v2", false)
		r.eventually("a Get follows", func() bool { return redistest.Must(c.Get(r.ctx, 1)) == "v2" })
		if r.rdb != nil {
			open(r, source.source()).gives(r, 1, "v2")
		}
		if n := source.loads(1); n != 2 {
			r.Errorf("%d loads, want 2", n)
		}
		source.remove(1)
		time.Sleep(2 * time.Millisecond) // what began in the same moment is new enough
		if got, err := c.With(anew).Get(r.ctx, 1); !errors.Is(err, cache.ErrNotFound) {
			r.Errorf("of a row that is gone: %v, %v", got, err)
		}
		r.eventually("a Get follows", func() bool { _, err := c.Get(r.ctx, 1); return errors.Is(err, cache.ErrNotFound) })
		time.Sleep(2 * time.Millisecond)
		source.put(1, "v3") // which neither a null in the process nor one in Redis hides
		c.reads(r, anew, 1, "v3", false)
	})
}

// Many readers of two processes read with MaxAge at once, and no load is under way: one load serves
// them all. If each of them claimed the lease, each would void the load of the one before.
func TestAStampedeOfTheAsStrictIsOneLoad(t *testing.T) {
	for _, many := range []bool{false, true} {
		inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
			source := newRows(r, 1, 2)
			src := source.source()
			if many {
				src = cache.Source[int64, string]{LoadMany: func(ctx context.Context, keys []int64) (map[int64]string, error) {
					values := map[int64]string{}
					for _, key := range keys {
						values[key] = redistest.Must(source.load(ctx, key))
					}
					return values, nil
				}}
			}
			caches := []*probe[int64, string]{open(r, src), open(r, src)}
			for _, c := range caches {
				c.gives(r, 1, "v1")
				c.gives(r, 2, "v1")
			}
			source.put(1, "v2")
			source.put(2, "v2")
			source.forget()
			source.slowly(func(context.Context, int64) error { time.Sleep(50 * time.Millisecond); return nil })
			time.Sleep(time.Second)
			var wg sync.WaitGroup
			for _, c := range caches {
				for range 64 {
					wg.Go(func() { c.reads(r, anew, 1, "v2", false) })
					wg.Go(func() {
						got, err := c.With(anew).GetMany(r.ctx, []int64{1, 2})
						if err != nil || got[1] != "v2" || got[2] != "v2" {
							r.Errorf("a page: %v, %v", got, err)
						}
					})
				}
			}
			synctest.Wait()
			for _, c := range caches {
				c.gives(r, 1, "v1") // at once, beside the load
			}
			wg.Wait()
			if source.loads(1) != 1 || source.loads(2) != 1 {
				r.Errorf("%d and %d loads, want 1", source.loads(1), source.loads(2))
			}
		})
	}
}

// A load under way began too early for the strict readers that come now. One more load serves them all.
func TestALoadUnderWayIsNoAnswerToWhoComesAfterItsBeginning(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		caches := []*probe[int64, string]{open(r, source.source())}
		if r.rdb != nil {
			caches = append(caches, open(r, source.source()))
		}
		for _, c := range caches {
			c.gives(r, 1, "v1")
		}
		source.forget()
		source.slowly(func(context.Context, int64) error { time.Sleep(50 * time.Millisecond); return nil })
		time.Sleep(time.Second)
		var wg sync.WaitGroup
		wg.Go(func() { caches[0].reads(r, anew, 1, "v1", false) })
		time.Sleep(10 * time.Millisecond)
		source.put(1, "v2") // beside the load, which has read v1
		for _, c := range caches {
			for range 64 {
				wg.Go(func() { c.reads(r, anew, 1, "v2", false) })
			}
		}
		wg.Go(func() { caches[0].reads(r, cache.Reads{MaxAge: 100 * time.Millisecond}, 1, "v1", false) }) // one who is not as strict
		began := time.Now()
		wg.Wait()
		if n := source.loads(1); n != 2 {
			r.Errorf("%d loads, want 2", n)
		}
		if took := time.Since(began); took > 150*time.Millisecond {
			r.Errorf("two loads of 50 ms took %v", took)
		}
	})
}

// Several pages join the loads of another page too late, and load again together. If they loaded one
// key after another, they would take as many loads as they have keys.
func TestPagesThatComeTooLateForALoadGoOnTogether(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		source := newBatches(r, 1, 100)
		c := open(r, source.source())
		var keys []int64
		for key := range int64(100) {
			keys = append(keys, key+1)
		}
		if _, err := c.GetMany(r.ctx, keys); err != nil {
			r.Fatal(err)
		}
		time.Sleep(time.Second)
		source.forget()
		source.slowly(func(context.Context, []int64) error { time.Sleep(50 * time.Millisecond); return nil })
		var wg sync.WaitGroup
		page := func() {
			if got, err := c.With(anew).GetMany(r.ctx, keys); err != nil || len(got) != len(keys) {
				r.Errorf("%d values, %v", len(got), err)
			}
		}
		wg.Go(page)
		time.Sleep(10 * time.Millisecond)
		for range 8 {
			wg.Go(page)
		}
		began := time.Now()
		wg.Wait()
		if took := time.Since(began); took > 150*time.Millisecond {
			r.Errorf("two loads of 50 ms took %v", took)
		}
		byKey, calls := source.loads()
		for key, n := range byKey {
			if n != 2 || calls > 9 {
				r.Errorf("%d loads of %d, in %d calls, want 2", n, key, calls)
			}
		}
	})
}

// The load fails, so a read with MaxAge returns the value that is too old, marked as stale. With
// NoStale it returns the error.
func TestIfTheLoadFailsAnOlderValueIsServedMarked(t *testing.T) {
	inCells(t, strictCells, func(r *rig) {
		for name, change := range map[string]func(*cache.Options){"": func(*cache.Options) {}, "-hard": hard} {
			source := newRows(r, 1)
			c := open(r, source.source(), change, func(o *cache.Options) { o.Name = "test" + name })
			c.gives(r, 1, "v1")
			time.Sleep(5 * time.Millisecond)
			source.slowly(func(context.Context, int64) error { return errBroken })
			for range 3 {
				c.reads(r, anew, 1, "v1", true)
				if got, err := c.With(cache.Reads{Reload: true, NoStale: true}).Get(r.ctx, 1); !errors.Is(err, errBroken) {
					r.Errorf("with NoStale: %v, %v", got, err)
				}
				c.gives(r, 1, "v1")
			}
			if s := c.Stats(); s.Stale != 3 || s.Errors != 3 {
				r.Errorf("%+v", s)
			}
			if n := source.loads(1); n != 3 && r.redis != "real" { // one that is held for those with a fallback, and one for all
				r.Errorf("%d loads", n)
			}
		}
	})
}

// A null is too old for a read with MaxAge, and the load fails. Catches a null that is returned in
// place of the error: it is no older value.
func TestANullIsNotServedForALoadThatFails(t *testing.T) {
	inCells(t, strictCells, func(r *rig) {
		source := newRows(r)
		c := open(r, source.source())
		for range 3 { // the second miss puts a null into Redis
			c.gives404(r, 1)
			time.Sleep(5 * time.Millisecond)
		}
		source.slowly(func(context.Context, int64) error { return errBroken })
		if got, err := c.With(anew).Get(r.ctx, 1); !errors.Is(err, errBroken) {
			r.Errorf("got %v, %v", got, err)
		}
		c.gives404(r, 1)
	})
}
