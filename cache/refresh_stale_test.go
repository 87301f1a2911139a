package cache_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// staleAfterASecond makes values stale after a second, for an hour.
func staleAfterASecond(o *cache.Options) {
	o.TTL, o.StaleWhileRevalidate, o.StaleIfError, o.EarlyRefresh, o.Jitter = time.Second, time.Hour, -1, -1, -1
}

// fallbackAfterASecond makes values fallbacks after a second, for an hour.
func fallbackAfterASecond(o *cache.Options) {
	o.TTL, o.StaleWhileRevalidate, o.StaleIfError, o.Jitter = time.Second, -1, time.Hour, -1
}

// pastTTL sleeps until values of a second's TTL are past it.
func pastTTL() { time.Sleep(1100 * time.Millisecond) }

var overRedis = []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real"}}

// A refresh that a caller waits for, or one by each process, fails this.
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
			r.eventually("the new value answers", func() bool { return must(c.Get(r.ctx, 1)) == "v2" })
		}
		if n := source.loads(1); n != 2 {
			r.Errorf("%d loads, want 2: the first, and one refresh", n)
		}
		r.eventually("a refresh is counted", func() bool { return caches[0].Stats().Refreshed+caches[1].Stats().Refreshed > 0 })
	})
}

// Without the lease, the refresh would bring back the value from before the
// invalidation.
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
		r.eventually("the new value answers", func() bool { return must(c.Get(r.ctx, 1)) == "v2" })
		if n := c.Stats().Refreshed; n != 0 {
			r.Errorf("%d refreshes count as successful", n)
		}
	})
}

// Without the hold, every reader would begin another refresh from a source that fails.
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

// Without the bound, many values that end together would be a stampede of refreshes.
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

// A refresh of one key that begins inside the load of another is no part of that load:
// nobody waits for it, so it may ask for that other key.
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

func TestAFallbackAnswersWhenTheLoadFails(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "real"}}, func(r *rig) {
		source := newRows(r, 1)
		c, other := open(r, source.source(), fallbackAfterASecond, func(o *cache.Options) { o.Rebuild.ErrorHold = time.Minute }),
			open(r, source.source(), fallbackAfterASecond)
		c.gives(r, 1, "v1")
		pastTTL()
		source.slowly(func(context.Context, int64) error { return errBroken })
		for range 5 {
			if got, err := c.Fetch(r.ctx, 1); err != nil || got.Value != "v1" || !got.Stale || got.Tier != cache.TierRedis {
				r.Errorf("got %+v, %v, want the fallback", got, err)
			}
		}
		if s := c.Stats(); source.loads(1) != 2 || s.Fallbacks != 5 || s.LoadErrors != 1 {
			r.Errorf("%d loads, want the first and one while its error is held: %+v", source.loads(1), s)
		}
		// After an invalidation the fallback does not answer, and the held error neither.
		source.slowly(nil)
		source.put(1, "v2")
		if err := other.Invalidate(r.ctx, 1); err != nil {
			r.Error(err)
		}
		c.gives(r, 1, "v2")
		// A source that answers again beats the fallback.
		pastTTL()
		source.put(1, "v3")
		other.gives(r, 1, "v3")
	})
}

// A caller from after an invalidation must not get the fallback that was read before
// it, though both joined the same flight.
func TestAFallbackIsOnlyForCallersFromBeforeItWasRead(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source, elsewhere, gate := newRows(r, 1), newRows(r), newLatch()
		c, other := open(r, source.source(), fallbackAfterASecond), open(r, elsewhere.source(), fallbackAfterASecond)
		c.gives(r, 1, "v1")
		pastTTL()
		source.slowly(func(ctx context.Context, key int64) error { return errors.Join(gate.wait(ctx, key), errBroken) })
		early := c.getting(r.ctx, 1)
		gate.arrived(r)
		elsewhere.put(1, "v2")
		if err := other.Invalidate(r.ctx, 1); err != nil {
			r.Error(err)
		}
		other.gives(r, 1, "v2")
		late := c.getting(r.ctx, 1)
		synctest.Wait()
		close(gate.open)
		if got := <-early; got.err != nil {
			r.Errorf("the early caller gets %v", got.err)
		}
		if got := <-late; got.value != "v2" || got.err != nil {
			r.Errorf("the late caller gets %q, %v, want v2", got.value, got.err)
		}
	})
}

// A value that cannot be stored has overtaken the old one all the same, which must not
// go on to answer.
func TestWhatCannotBeStoredEndsWhatStandsThere(t *testing.T) {
	long := strings.Repeat("l", 1000)
	for name, windows := range map[string]func(*cache.Options){"stale": staleAfterASecond, "fallback": fallbackAfterASecond} {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "real"}}, func(r *rig) {
				source := newRows(r, 1)
				c := open(r, source.source(), windows, func(o *cache.Options) { o.MaxValue = 900 })
				c.gives(r, 1, "v1")
				source.put(1, long)
				pastTTL()
				if _, err := c.Get(r.ctx, 1); err != nil {
					r.Error(err)
				}
				r.eventually("the old value has ended", func() bool { return r.rdb.Exists(r.ctx, valueKey(1)).Val() == 0 })
				c.gives(r, 1, long)
			})
		})
	}
}

// Callers who join while the source hangs have read nothing. If they did not read before
// their deadlines they would get nothing, however long the load takes; and with what the
// first one has read they would miss a write.
func TestThoseWhoJoinLaterTakeTheFallbackAsItIsThen(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		patient := func(o *cache.Options) { fallbackAfterASecond(o); o.SoftTimeout = time.Hour }
		c, waits, writer := open(r, source.source(), patient), open(r, source.source(), patient), open(r, source.source(), patient)
		c.gives(r, 1, "v1")
		pastTTL()
		source.slowly(gate.wait)
		early := c.getting(r.ctx, 1)
		gate.arrived(r)
		takes := func(c *probe[int64, string], want string) {
			r.Helper()
			ctx, leave := context.WithTimeout(r.ctx, 500*time.Millisecond)
			defer leave()
			if got := <-c.getting(ctx, 1); got.value != want || got.err != nil {
				r.Errorf("got %q, %v, want %q", got.value, got.err, want)
			}
		}
		takes(c, "v1")
		takes(waits, "v1") // it waits for the lease
		if err := writer.Set(r.ctx, 1, "v2"); err != nil {
			r.Error(err)
		}
		takes(c, "v2")
		takes(waits, "v2")
		close(gate.open)
		<-early
	})
}

// A refresh and a second look at a fallback must not take the beginning of a value that
// is too long for a value.
func TestWhatIsTooLongIsNoValueBesideALoad(t *testing.T) {
	long := strings.Repeat("l", 1000)
	for name, meet := range map[string]func(r *rig, m *redistest.MiniServer){
		"refreshed": func(r *rig, m *redistest.MiniServer) {
			source := newRows(r, 1)
			c := open(r, source.source(), staleAfterASecond, func(o *cache.Options) { o.MaxValue = 900 })
			c.gives(r, 1, "v1")
			source.put(1, "v2")
			pastTTL()
			var laid atomic.Bool
			m.Before(func(command string, _ []string) {
				if command == "EVALSHA" && laid.CompareAndSwap(false, true) {
					r.rdb.Set(r.ctx, valueKey(1), long, time.Minute)
				}
			})
			c.gives(r, 1, "v1")
			synctest.Wait()
			if s := c.Stats(); s.Unfit != 1 || s.Refreshed != 1 {
				r.Errorf("want one unfit value and a refresh: %+v", s)
			}
			c.gives(r, 1, "v2")
		},
		"in place of a fallback": func(r *rig, _ *redistest.MiniServer) {
			source, gate := newRows(r, 1), newLatch()
			c := open(r, source.source(), fallbackAfterASecond, func(o *cache.Options) { o.MaxValue, o.SoftTimeout = 900, time.Hour })
			c.gives(r, 1, "v1")
			pastTTL()
			source.slowly(gate.wait)
			early := c.getting(r.ctx, 1)
			gate.arrived(r)
			r.rdb.Set(r.ctx, valueKey(1), long, time.Minute)
			ctx, leave := context.WithTimeout(r.ctx, 500*time.Millisecond)
			defer leave()
			if got := <-c.getting(ctx, 1); !errors.Is(got.err, context.DeadlineExceeded) || c.Stats().Unfit != 1 {
				r.Errorf("got %.20q, %v, %+v; want no answer", got.value, got.err, c.Stats())
			}
			close(gate.open)
			<-early
		},
	} {
		t.Run(name, func(t *testing.T) { inBubble(t, cell{redis: "mini"}, meet) })
	}
}

// A page of values that are past their TTL is one query, also where the source can load single keys:
// by Load it would be a hundred, sixteen at a time, of which the others wait for later readers. What
// shares a call counts once among Options.Refreshes.
func TestAStalePageIsRefreshedByOneCall(t *testing.T) {
	cells := append([]cell{{redis: "none", local: true}}, overRedis...)
	inCells(t, cells, func(r *rig) {
		var calls, edition atomic.Int64
		c := open(r, cache.Source[int64, string]{
			Load: func(context.Context, int64) (string, error) {
				return "", errors.New("a key of a page was loaded by itself")
			},
			LoadMany: func(_ context.Context, keys []int64) (map[int64]string, error) {
				calls.Add(1)
				values := map[int64]string{}
				for _, key := range keys {
					values[key] = fmt.Sprint("v", edition.Load())
				}
				return values, nil
			},
		}, staleAfterASecond, func(o *cache.Options) { o.Refreshes = 1 })
		page := make([]int64, 100)
		for i := range page {
			page[i] = int64(i)
		}
		reads := func(want string) {
			r.Helper()
			got, err := c.GetMany(r.ctx, page)
			if err != nil || len(got) != len(page) {
				r.Fatalf("%d values, %v", len(got), err)
			}
			for key, value := range got {
				if value != want {
					r.Fatalf("%d is %s, want %s", key, value, want)
				}
			}
		}
		for n := range int64(3) {
			edition.Store(n)
			if n == 0 {
				reads("v0")
			} else {
				pastTTL()
				reads(fmt.Sprint("v", n-1))
			}
			r.eventually("it is refreshed", func() bool { return c.Stats().Refreshed == uint64(100*n) })
			reads(fmt.Sprint("v", n))
			if calls.Load() != n+1 {
				r.Fatalf("%d calls of the source, want %d", calls.Load(), n+1)
			}
		}
	})
}

// A hook that calls Goexit at the end of a refresh (FailNow of a test, say) ends the goroutine that
// refreshes a page. Catches a place among Options.Refreshes that is never given back, so that after
// sixteen of these nothing is refreshed any more, and keys of the page whose jobs never end.
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
