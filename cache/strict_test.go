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

// anew are the rules of a read that accepts no value from before it.
var anew = cache.Reads{Reload: true}

// reads fails the test unless a read of key by the rules gives this value.
func (p *probe[K, V]) reads(r *rig, rules cache.Reads, key K, want any, stale bool) {
	r.Helper()
	got, err := p.With(rules).Fetch(r.ctx, key)
	if err != nil || any(got.Value) != want || got.Stale != stale {
		r.Errorf("Fetch(%v) with %+v is %+v, %v; want %v, stale %v", key, rules, got, err, want, stale)
	}
}

var strictCells = []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real", local: true}, {redis: "none", local: true}}

// ErrorHold keeps the error of a read with rules for such reads alone: a Get loads, and a refresh
// does. The held error of a Get does not fail a read with rules either.
func TestNoErrorCrossesFromStrictReadsToOthers(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source := newRows(r, 1, 2)
		c := open(r, source.source(), staleAfterASecond, func(o *cache.Options) { o.Rebuild.ErrorHold = time.Minute })
		source.slowly(func(context.Context, int64) error { return errBroken })
		for _, rules := range []cache.Reads{{NoStale: true}, {SkipLocal: true}, anew} { // all by one error
			if _, err := c.With(rules).Get(r.ctx, 1); !errors.Is(err, errBroken) {
				r.Errorf("with %+v: %v", rules, err)
			}
		}
		if n := source.loads(1); n != 1 {
			r.Errorf("%d loads, want 1 and its held error", n)
		}
		source.slowly(nil)
		c.gives(r, 1, "v1") // held for strict readers alone
		pastTTL()
		c.gives(r, 1, "v1")
		synctest.Wait()
		if s := c.Stats(); s.Refreshes != 1 || s.Refreshed != 1 {
			r.Errorf("the refresh beside a held error: %+v", s)
		}
		source.slowly(func(context.Context, int64) error { return errBroken })
		if _, err := c.Get(r.ctx, 2); !errors.Is(err, errBroken) {
			r.Errorf("Get: %v", err)
		}
		source.slowly(nil)
		c.reads(r, cache.Reads{NoStale: true}, 2, "v1", false)
		if err := c.Invalidate(r.ctx, 1); err != nil { // forgets both
			r.Fatal(err)
		}
		c.reads(r, cache.Reads{NoStale: true}, 1, "v1", false)
	})
}

// A Get that has to load opens its own flight beside that of a strict reader. It takes the value of
// another process if that is new enough for it.
func TestAGetWaitsForNoStrictFlight(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		source, gate := newRows(r, 1), newLatch()
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		time.Sleep(10 * time.Millisecond)
		source.slowly(gate.wait)
		var wg sync.WaitGroup
		wg.Go(func() { c.reads(r, anew, 1, "v1", false) })
		gate.arrived(r)
		c.gives(r, 1, "v1")
		if got, err := c.GetMany(r.ctx, []int64{1}); err != nil || got[1] != "v1" {
			r.Errorf("a page: %v, %v", got, err)
		}
		c.reads(r, cache.Reads{SkipLocal: true}, 1, "v1", false) // nor does a reader who is not as strict
		close(gate.open)
		wg.Wait()
		if s := c.Stats(); s.Joined != 0 {
			r.Errorf("somebody joined: %+v", s)
		}
	})
}

// A loader reads its own key with rules. It gets ErrReentrant: the load would wait for itself.
func TestAStrictReadOfALoadsOwnKeyIsReentrant(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "none"}}, func(r *rig) {
		var c *probe[int64, string]
		c = open(r, cache.Source[int64, string]{Load: func(ctx context.Context, key int64) (string, error) {
			return c.With(anew).Get(ctx, key)
		}})
		for _, get := range []func(context.Context, int64) (string, error){c.Get, c.With(anew).Get, c.With(cache.Reads{NoStale: true}).Get} {
			if _, err := get(r.ctx, 1); !errors.Is(err, cache.ErrReentrant) {
				r.Errorf("got %v", err)
			}
		}
	})
}
