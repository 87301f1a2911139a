package cache_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// isNotCached fails the test unless a read with NoLoad finds nothing.
func isNotCached(r *rig, c *probe[int64, string], key int64) {
	r.Helper()
	got, err := c.With(cache.Reads{NoLoad: true}).Fetch(r.ctx, key)
	if !errors.Is(err, cache.ErrNotCached) || got != (cache.Result[string]{}) {
		r.Errorf("Fetch(%d) with NoLoad gives %+v, %v; want ErrNotCached", key, got, err)
	}
}

func TestWithNoLoadTheSourceIsLeftAlone(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r, 1, 2)
		r.known(404)
		c := open(r, source.source())
		reader := c.With(cache.Reads{NoLoad: true})
		isNotCached(r, c, 1)
		isNotCached(r, c, 404)
		if n := source.all(); n != 0 {
			r.Errorf("%d loads", n)
		}
		c.gives(r, 1, "v1")
		if r.kept() {
			r.eventually("what is there is served", func() bool {
				got, err := reader.Get(r.ctx, 1)
				return err == nil && got == "v1"
			})
		}
		for range 2 { // Redis takes a null at its second miss
			c.gives404(r, 404)
		}
		if r.kept() {
			r.eventually("a null is served", func() bool {
				_, err := reader.Get(r.ctx, 404)
				return errors.Is(err, cache.ErrNotFound)
			})
		}
		if _, err := reader.Get(r.ctx, 405); r.filter != errors.Is(err, cache.ErrNotFound) || r.filter == errors.Is(err, cache.ErrNotCached) {
			r.Errorf("what the filter denies: %v", err)
		}
		if s := c.Stats(); s.NotCached < 2 || s.Errors != 0 {
			r.Errorf("of reads that found nothing: %+v", s)
		}
		if err := c.Close(); err != nil {
			r.Fatal(err)
		}
		if _, err := reader.Get(r.ctx, 2); !errors.Is(err, cache.ErrClosed) {
			r.Errorf("after Close: %v", err)
		}
	})
}

// A read that must not load gives nothing to those who load, and waits for none of them. In
// HybridCache those who join a read-only call get its nothing (dotnet/extensions#6202).
func TestAReadThatDoesNotLoadSharesNothingWithThoseThatDo(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		c := open(r, source.source())
		source.slowly(gate.wait)
		var gets, looks sync.WaitGroup
		for range 8 {
			looks.Go(func() { isNotCached(r, c, 1) })
		}
		looks.Wait()
		for range 8 {
			gets.Go(func() { c.gives(r, 1, "v1") })
			looks.Go(func() { isNotCached(r, c, 1) })
		}
		looks.Wait()
		gate.arrived(r)
		began := time.Now()
		isNotCached(r, c, 1)
		if took := time.Since(began); took > 10*time.Second {
			r.Errorf("beside a load it took %v", took)
		}
		close(gate.open)
		gets.Wait()
		if s := c.Stats(); r.kept() && source.loads(1) != 1 || s.NotCached != 17 {
			r.Errorf("%d loads, want 1: %+v", source.loads(1), s)
		}
	})
}

// Catches a doorkeeper that counts reads that did not load: Redis would hold a null of a key
// that has been missed once.
func TestAReadThatDoesNotLoadCountsNoNull(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		c := open(r, newRows(r).source())
		for range 5 {
			isNotCached(r, c, 404)
		}
		c.gives404(r, 404)
		if n := r.rdb.DBSize(r.ctx).Val(); n > 1 { // the epoch
			r.Errorf("Redis holds %v", r.rdb.Keys(r.ctx, "*").Val())
		}
	})
}

// Catches a read with NoLoad that gets the error of a load, or leaves one behind.
func TestAReadThatDoesNotLoadKnowsNoErrorOfALoad(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source(), func(o *cache.Options) { o.Rebuild.ErrorHold = time.Minute })
		isNotCached(r, c, 1)
		source.slowly(func(context.Context, int64) error { return errBroken })
		if _, err := c.Get(r.ctx, 1); !errors.Is(err, errBroken) {
			r.Errorf("the load that fails: %v", err)
		}
		isNotCached(r, c, 1)
		if s := c.Stats(); s.NotCached != 2 || s.Errors != 1 || s.HeldErrors != 0 {
			r.Errorf("%+v", s)
		}
	})
}

// A value past its TTL is served, marked, and stays the only one until somebody loads it; one that
// is for errors alone is none, since nothing has failed.
func TestAReadThatDoesNotLoadBeginsNoRefresh(t *testing.T) {
	inCells(t, overRedis, func(r *rig) {
		for name, test := range map[string]struct {
			past   func(*cache.Options)
			served bool
		}{"stale": {staleAfterASecond, true}, "fallback": {fallbackAfterASecond, false}} {
			source := newRows(r, 1)
			c := open(r, source.source(), test.past, func(o *cache.Options) { o.Name = name })
			c.gives(r, 1, "v1")
			pastTTL()
			source.forget()
			if !test.served {
				isNotCached(r, c, 1)
			} else if got, err := c.With(cache.Reads{NoLoad: true}).Fetch(r.ctx, 1); err != nil || got.Value != "v1" || !got.Stale {
				r.Errorf("%s: %+v, %v", name, got, err)
			}
			if got, err := c.With(cache.Reads{NoLoad: true, NoStale: true}).Get(r.ctx, 1); !errors.Is(err, cache.ErrNotCached) {
				r.Errorf("%s, with NoStale: %v, %v", name, got, err)
			}
			if s := c.Stats(); s.Refreshes != 0 || source.loads(1) != 0 {
				r.Errorf("%s: %d loads, %+v", name, source.loads(1), s)
			}
		}
	})
}

// Without Redis a value past its TTL is found in the process.
func TestWithoutRedisAReadThatDoesNotLoadBeginsNoRefresh(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source(), staleAfterASecond)
		c.gives(r, 1, "v1")
		pastTTL()
		got, err := c.With(cache.Reads{NoLoad: true}).Fetch(r.ctx, 1)
		if err != nil || got.Value != "v1" || !got.Stale {
			r.Errorf("got %+v, %v", got, err)
		}
		if got, err := c.With(cache.Reads{NoLoad: true, NoStale: true}).Get(r.ctx, 1); !errors.Is(err, cache.ErrNotCached) {
			r.Errorf("with NoStale: %v, %v", got, err)
		}
		synctest.Wait()
		if s := c.Stats(); s.Refreshes != 0 || source.loads(1) != 1 {
			r.Errorf("%d loads, %+v", source.loads(1), s)
		}
	})
}

// A page gives what is there, and names what is not.
func TestAPageThatDoesNotLoadNamesWhatIsNotCached(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true, filter: true}, {redis: "real", local: true}}, func(r *rig) {
		source := newBatches(r, 1, 4)
		c := open(r, source.source())
		if _, err := c.GetMany(r.ctx, []int64{1, 2}); err != nil {
			r.Fatal(err)
		}
		source.forget()
		got, err := c.With(cache.Reads{NoLoad: true}).FetchMany(r.ctx, []int64{1, 2, 3, 4, 1})
		if len(got) != 2 || got[1].Value != "v1" || got[2].Tier == cache.TierSource {
			r.Errorf("got %v", got)
		}
		var batch *cache.BatchError[int64]
		if !errors.As(err, &batch) || len(batch.Causes) != 2 ||
			!errors.Is(batch.Causes[3], cache.ErrNotCached) || !errors.Is(batch.Causes[4], cache.ErrNotCached) {
			r.Errorf("the error is %v", err)
		}
		if _, calls := source.loads(); calls != 0 {
			r.Errorf("%d loads", calls)
		}
		if s := c.Stats(); s.NotCached != 2 || s.Errors != 0 {
			r.Errorf("%+v", s)
		}
	})
}

// During an outage what the process has kept is served, marked, whatever its age, and no place is
// taken for it; with NoStale it is not.
func TestDuringAnOutageAReadThatDoesNotLoadGetsWhatIsKept(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		r.Cleanup(func() { time.Sleep(time.Minute) }) // go-redis goes on to dial for a while
		w, source := &way{}, newRows(r, 1, 2, 3, 4, 5, 6)
		c := openOn(r, w.client(r, m), source.source(), ttl(time.Hour), func(o *cache.Options) {
			o.Breaker, o.Local.TTL = redistest.Must(breaker.New(breaker.Options{})), 30*time.Second
		})
		c.gives(r, 1, "v1")
		time.Sleep(time.Minute)
		w.refuse()
		source.forget()
		for range 2 { // before the outage is known, and after
			got, err := c.With(cache.Reads{NoLoad: true}).Fetch(r.ctx, 1)
			if err != nil || got.Value != "v1" || !got.Stale || got.Tier != cache.TierLocal {
				r.Errorf("got %+v, %v", got, err)
			}
			for _, rules := range []cache.Reads{{NoLoad: true, NoStale: true}, {NoLoad: true, SkipLocal: true}} {
				if got, err := c.With(rules).Get(r.ctx, 1); !errors.Is(err, cache.ErrNotCached) {
					r.Errorf("with %+v: %v, %v", rules, got, err)
				}
			}
			isNotCached(r, c, 6)
			if source.all() > 0 {
				r.Error("a load")
			}
			for key := int64(2); key <= 5; key++ {
				c.gives(r, key, "v1")
			}
			if !c.Stats().Rebuild.Outage {
				r.Fatal("no outage")
			}
			source.forget()
		}
	})
}
