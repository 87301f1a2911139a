package audit_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// Loads that do not heed their contexts end as looks that failed: they keep no place, and Close does not wait for them
// for long.
func TestALoadThatHangsEndsOnlyItsLook(t *testing.T) {
	const hanging = 4 // as many as there are places
	inBubble(t, func(t *testing.T, _ *redistest.MiniServer) {
		rows := newTable(9)
		end := make(chan struct{})
		defer close(end)
		var loads atomic.Int64
		load := func(ctx context.Context, key int64) (string, error) {
			if loads.Add(1) <= hanging {
				<-end
			}
			return rows.load(ctx, key)
		}
		c := redistest.Must(cache.New(nil, rows.load, options{Name: "product", Logger: quiet, TTL: time.Hour}))
		defer c.Close()
		ledger := redistest.Must(audit.NewLedger(c, load, ledgerOptions{Share: 1}))
		change := func() {
			for key := range int64(hanging) {
				if err := c.Set(t.Context(), key, "v1"); err != nil {
					t.Error(err)
				}
			}
		}
		change()
		time.Sleep(5 * time.Minute)
		change()
		time.Sleep(2 * time.Minute)
		if s := c.Stats().Ledger; s.Failed != hanging || s.Looked1s < hanging || s.Looked60s < hanging {
			t.Errorf("got %+v", s)
		}
		loads.Store(0)
		change()
		synctest.Wait()
		began := time.Now()
		if ledger.Close(); time.Since(began) > 10*time.Second {
			t.Errorf("Close took %v", time.Since(began))
		}
	})
}

// A function of the user's that ends its goroutine, as t.FailNow does, ends one look, or one change, and no more.
func TestAGoexitEndsOnlyItsLook(t *testing.T) {
	const times = 20 // more than a Shadow has workers
	leaving := func() func() {
		var calls atomic.Int64
		return func() {
			if calls.Add(1) <= times {
				runtime.Goexit()
			}
		}
	}
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(1)
		routed, equal, shadowed := leaving(), leaving(), leaving()
		p := open(t, m.Client(t), rows.load, rows, func(o *ledgerOptions) {
			o.Keys = map[string]func(feed.Row) ([]int64, error){"product": func(row feed.Row) ([]int64, error) {
				routed()
				key, err := row.Int("id")
				return []int64{key}, err
			}}
			o.Equal = func(a, b string) bool { equal(); return a == b }
		})
		shadow := redistest.Must(audit.NewShadow(p.Cache, rows.load, audit.ShadowOptions[int64, string]{
			Share: 1, Equal: func(a, b string) bool { shadowed(); return a == b },
		}))
		defer shadow.Close()
		p.gives(0, "v1")
		for range times + 1 {
			_ = redistest.Must(shadow.Get(t.Context(), 0))
			rows.tell(0)
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Minute)
		if s := p.Stats(); s.Ledger.Changes != 1 || s.Shadow.Equal != 1 {
			t.Errorf("got %+v, %+v", s.Ledger, s.Shadow)
		}
	})
}

// A change whose keys cannot be told is counted as failed. The feed is not opened again, which would lose the others of
// its batch.
func TestAChangeWithoutKeysEndsNoFeed(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(9)
		p := open(t, m.Client(t), rows.load, rows, func(o *ledgerOptions) {
			o.Keys = map[string]func(feed.Row) ([]int64, error){"product": func(row feed.Row) ([]int64, error) {
				key, err := row.Int("id")
				if key == 1 {
					err = errors.New("no such luck")
				}
				return []int64{key}, err
			}}
		})
		rows.tell(0, 1, 2, 3)
		synctest.Wait()
		if s := p.Stats().Ledger; s.Failed != 1 || s.Changes != 3 || rows.reading() != 1 {
			t.Errorf("%d opens, got %+v", rows.reading(), s)
		}
	})
}
