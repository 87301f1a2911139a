package cache_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Two processes serve a stale value during one refresh. Catches a refresh that a caller waits for,
// and one by each process.
func TestWhatIsStaleIsRefreshedOnceWhileItAnswers(t *testing.T) {
	inCells(t, overRedis, func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		caches := []*probe[int64, string]{open(r, source.source(), staleAfterASecond), open(r, source.source(), staleAfterASecond)}
		for _, c := range caches {
			c.gives(r, 1, "v1")
		}
		source.put(1, "v2")
		source.slowly(gate.wait)
		pastTTL()
		for round := range 3 {
			for _, c := range caches {
				if got, err := c.Fetch(r.ctx, 1); err != nil || got.Value != "v1" || !got.Stale {
					r.Errorf("got %+v, %v, want v1, stale", got, err)
				}
			}
			if round == 0 {
				gate.arrived(r)
			}
		}
		close(gate.open)
		for _, c := range caches {
			r.eventually("the new value answers", func() bool { return redistest.Must(c.Get(r.ctx, 1)) == "v2" })
		}
		if n := source.loads(1); n != 2 {
			r.Errorf("%d loads, want 2: the first, and one refresh", n)
		}
		r.eventually("a refresh is counted", func() bool { return caches[0].Stats().Refreshed+caches[1].Stats().Refreshed > 0 })
	})
}

// Without the lease, the refresh would bring back the value from before the invalidation.
func TestAnInvalidationBeatsARefreshUnderWay(t *testing.T) {
	inCells(t, overRedis, func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		c, other := open(r, source.source(), staleAfterASecond), open(r, source.source(), staleAfterASecond)
		c.gives(r, 1, "v1")
		source.slowly(gate.wait)
		pastTTL()
		c.gives(r, 1, "v1")
		gate.arrived(r)
		source.slowly(nil)
		source.put(1, "v2")
		if err := other.Invalidate(r.ctx, 1); err != nil {
			r.Fatal(err)
		}
		close(gate.open)
		r.eventually("the refresh is refused", func() bool { return c.Stats().Rebuild.Refused == 1 })
		other.gives(r, 1, "v2")
		r.eventually("the new value answers", func() bool { return redistest.Must(c.Get(r.ctx, 1)) == "v2" })
		if n := c.Stats().Refreshed; n != 0 {
			r.Errorf("%d refreshes count as successful", n)
		}
	})
}

// A source fails. Without ErrorHold, every reader would begin another refresh.
func TestAFailedRefreshRestsForAMoment(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source(), staleAfterASecond, func(o *cache.Options) { o.Rebuild.ErrorHold = time.Second })
		c.gives(r, 1, "v1")
		source.slowly(func(context.Context, int64) error { panic("ouch") })
		pastTTL()
		source.forget()
		for range 40 {
			c.gives(r, 1, "v1")
			time.Sleep(100 * time.Millisecond)
		}
		if n := source.loads(1); n < 3 || n > 6 {
			r.Errorf("%d loads in 4 s, want about one a second", n)
		}
		if s := c.Stats(); s.Refreshes != uint64(source.loads(1)) || s.Refreshed != 0 || s.LoadErrors != s.Refreshes {
			r.Errorf("of failed refreshes: %+v", s)
		}
	})
}

// Many values end together. Without Options.Refreshes, this would be a stampede of refreshes.
func TestRefreshesAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		refreshes int
		most      uint64
	}{"two": {2, 2}, "none": {-1, 0}} {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
				source, gate := newRows(r, 1, 2, 3), newLatch()
				c := open(r, source.source(), staleAfterASecond, func(o *cache.Options) { o.Refreshes = test.refreshes })
				all := func() {
					for key := range int64(3) {
						c.gives(r, key+1, "v1")
					}
					synctest.Wait()
				}
				all()
				source.slowly(gate.wait)
				pastTTL()
				all()
				if n := c.Stats().Refreshes; n != test.most {
					r.Errorf("%d refreshes begun, want %d", n, test.most)
				}
				close(gate.open)
				synctest.Wait()
				all()
				if n := c.Stats().Refreshes; test.most > 0 && n != 3 {
					r.Errorf("%d refreshes begun when the others had ended, want 3", n)
				}
			})
		})
	}
}

// The load of one key starts a refresh of another, which is no part of this load: nobody waits for it,
// so it may read the first key.
func TestARefreshStartedByALoadMayAskForItsKey(t *testing.T) {
	inCells(t, overRedis, func(r *rig) {
		var c *probe[int64, string]
		asked, refreshing := make(chan error, 1), atomic.Bool{}
		c = open(r, cache.Source[int64, string]{Load: func(ctx context.Context, key int64) (string, error) {
			var err error
			switch {
			case key == 1:
				_, err = c.Get(ctx, 2)
			case refreshing.Load():
				_, err := c.Get(ctx, 1)
				asked <- err
			}
			return "v1", err
		}}, staleAfterASecond)
		c.gives(r, 2, "v1")
		refreshing.Store(true)
		pastTTL()
		c.gives(r, 1, "v1")
		if err := <-asked; err != nil {
			r.Errorf("the refresh of 2 gets %v for 1", err)
		}
	})
}

// A hook calls Goexit at the end of a refresh (FailNow of a test, for example), and so ends the goroutine
// that refreshes a page. Catches a place among Options.Refreshes that is never given back (nothing
// would be refreshed after sixteen of these), and keys of the page whose jobs never end.
func TestAGoexitAtTheEndOfARefreshGivesItsPlaceBack(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source := newBatches(r, 1, 3)
		c := open(r, source.source(), staleAfterASecond, func(o *cache.Options) {
			o.Refreshes, o.Rebuild.ErrorHold = 1, -1
			o.Hooks.Rebuild = func(ctx context.Context, op cache.Op) (context.Context, func(cache.Outcome)) {
				return ctx, func(cache.Outcome) {
					if op.Background {
						runtime.Goexit()
					}
				}
			}
		})
		for round := range 4 {
			if got, err := c.GetMany(r.ctx, []int64{1, 2, 3}); err != nil || len(got) != 3 {
				r.Errorf("%v, %v", got, err)
			}
			synctest.Wait()
			if s := c.Stats(); s.Refreshes != uint64(3*round) {
				r.Errorf("%d refreshes in round %d", s.Refreshes, round)
			}
			time.Sleep(10 * time.Second)
		}
	})
}
