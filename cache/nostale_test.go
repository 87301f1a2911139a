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

// A reader with NoStale waits for the load of a value past its TTL. Other readers get the old value
// at once, and one load serves them all.
func TestWithNoStaleNothingPastItsTTLIsServed(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		for name, past := range map[string]func(*cache.Options){"stale": staleAfterASecond, "fallback": fallbackAfterASecond} {
			source := newRows(r, 1)
			c := open(r, source.source(), past, func(o *cache.Options) { o.Name = name })
			c.gives(r, 1, "v1")
			pastTTL()
			source.put(1, "v2")
			source.slowly(func(context.Context, int64) error { time.Sleep(50 * time.Millisecond); return nil })
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() { c.reads(r, cache.Reads{NoStale: true}, 1, "v2", false) })
			}
			synctest.Wait()
			if name == "stale" {
				c.gives(r, 1, "v1")
			}
			wg.Wait()
			if n := source.loads(1); r.rdb != nil && n != 2 {
				r.Errorf("%s: %d loads, want 2", name, n)
			}
			pastTTL()
			source.slowly(func(context.Context, int64) error { return errBroken })
			if got, err := c.With(cache.Reads{NoStale: true}).Get(r.ctx, 1); !errors.Is(err, errBroken) {
				r.Errorf("%s, when the load fails: %v, %v", name, got, err)
			}
			ctx, cancel := context.WithTimeout(r.ctx, 20*time.Millisecond)
			source.slowly(func(context.Context, int64) error { time.Sleep(50 * time.Millisecond); return nil })
			time.Sleep(time.Second)
			if got, err := c.With(cache.Reads{NoStale: true}).Get(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
				r.Errorf("%s, at the deadline: %v, %v", name, got, err)
			}
			cancel()
			time.Sleep(time.Second)
		}
	})
}

// A value was chosen within its TTL, which ends before the caller has it: here Clone takes 2 s for the
// first value of a page. The result is not marked as stale.
func TestAnAnswerIsMarkedByWhenItWasChosen(t *testing.T) {
	inBubble(t, cell{redis: "none", local: true}, func(r *rig, _ *redistest.MiniServer) {
		src := newRows(r, 1, 2).source()
		slow := false
		src.Clone = func(v string) string {
			if slow {
				time.Sleep(2 * time.Second)
			}
			return v
		}
		c := open(r, src, staleAfterASecond)
		c.gives(r, 1, "v1")
		c.gives(r, 2, "v1")
		slow = true
		got, err := c.With(cache.Reads{NoStale: true}).FetchMany(r.ctx, []int64{1, 2})
		if err != nil || len(got) != 2 || got[1].Stale || got[2].Stale {
			r.Errorf("with NoStale: %+v, %v", got, err)
		}
	})
}
