package cache_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A value that is too long to store is returned, and the others of the batch are stored.
func TestAValueOfABatchThatCannotBeStoredIsReturned(t *testing.T) {
	inCells(t, shared, func(r *rig) {
		source := newBatches(r, 1, 3)
		source.put(2, strings.Repeat("x", 1000))
		limit := func(o *cache.Options) { o.MaxValue = 100 }
		got, err := open(r, source.source(), limit).GetMany(r.ctx, upTo(1, 3))
		if err != nil || len(got) != 3 || len(got[2]) != 1000 {
			r.Errorf("want 3 values, got %v, %v", got, err)
		}
		c := open(r, source.source(), limit)
		_, _ = c.GetMany(r.ctx, upTo(1, 3))
		if byKey, _ := source.loads(); byKey[1] != 1 || byKey[2] != 2 || byKey[3] != 1 {
			r.Errorf("want only the large value loaded twice, got %v", byKey)
		}
	})
}

// A value that cannot be stored is newer than the stored one all the same, so the old one is dropped.
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

// A stored value is too long. A refresh, and a second look at a fallback, must not take its first bytes
// for a value.
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
