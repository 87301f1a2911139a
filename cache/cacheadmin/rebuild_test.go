package cacheadmin_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheadmin"
	"github.com/levee-go/levee/internal/redistest"
)

// rows are those of a database, whose scans stop at a gate.
type rows struct {
	ids   []int64
	scans atomic.Int64
	gate  chan error // each scan takes one before its last row, and ends with it unless it is nil
}

func (r *rows) scan(ctx context.Context) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		r.scans.Add(1)
		for i, id := range r.ids {
			if i == len(r.ids)-1 {
				select {
				case err := <-r.gate:
					if err != nil {
						yield(0, err)
						return
					}
				case <-ctx.Done():
					yield(0, ctx.Err())
					return
				}
			}
			if !yield(id, nil) {
				return
			}
		}
	}
}

// filtered makes a cache with a filter as another process has it. Each id exists.
func filtered(t *testing.T, rdb redis.UniversalClient) *cache.Cache[int64, string] {
	t.Helper()
	o := bloom.Options{Name: "product", Capacity: 1000, MaxTransaction: time.Second, Logger: slog.New(slog.DiscardHandler)}
	exists, err := bloom.New(o)
	if rdb != nil {
		exists, err = bloom.Open(t.Context(), rdb, o)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := cache.New(rdb, func(context.Context, int64) (string, error) { return "v", nil },
		cache.Options{Name: "product", Filter: exists, RedisTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Close(), exists.Close() })
	return c
}

func stands(t *testing.T, h http.Handler, state string) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, "the rebuild is "+state, func() bool {
		a := post(t, h, "do=filter")
		if a.status != http.StatusOK || a.Rebuild == nil {
			t.Fatalf("%+v", a)
		}
		return a.Rebuild.State == state
	})
}

// The request returns at once. The rebuild runs on, is seen, is there once, and its end is logged.
func TestARebuildRunsOnAfterItsRequest(t *testing.T) {
	var log redistest.Log
	r := &rows{ids: []int64{1, 2, 3}, gate: make(chan error)}
	c := filtered(t, nil)
	h := admin(t, func(o *cacheadmin.Options) { o.Logger = log.Logger() }, cacheadmin.WithScan(c, r.scan))
	stands(t, h, "none")
	if a := post(t, h, "do=rebuildfilter"); a.status != http.StatusAccepted || a.Error != "" {
		t.Fatalf("%+v", a)
	}
	redistest.Eventually(t, 10*time.Second, "two keys are read", func() bool {
		a := post(t, h, "do=filter")
		return a.Rebuild.State == "reading" && a.Rebuild.Keys == 2 && a.Rebuild.Who == "ann"
	})
	if a := post(t, h, "do=rebuildfilter", "Who", "bob"); a.status != http.StatusConflict || !strings.Contains(a.Error, "under way") || !strings.Contains(a.Error, "ann began it at") || a.Rebuild.Keys != 2 {
		t.Fatalf("a second call: %+v", a)
	}
	r.gate <- nil
	stands(t, h, "done")
	if _, err := c.Get(t.Context(), 4); !errors.Is(err, cache.ErrNotFound) {
		t.Errorf("the filter is not in use: %v", err)
	}
	redistest.Eventually(t, 10*time.Second, "the end is logged", func() bool {
		return log.Count(`level=INFO msg="a rebuild of a filter that cacheadmin began has ended" who=ann cache=product keys=3`) == 1
	})

	if a := post(t, h, "do=rebuildfilter"); a.status != http.StatusAccepted {
		t.Fatalf("after one that has ended: %+v", a)
	}
	r.gate <- errors.New("the database is on fire")
	stands(t, h, "failed")
	if a := post(t, h, "do=filter"); !strings.Contains(a.Rebuild.Error, "on fire") {
		t.Errorf("%+v", a.Rebuild)
	}
	redistest.Eventually(t, 10*time.Second, "the failure is logged", func() bool {
		return log.Count(`level=WARN msg="a rebuild of a filter that cacheadmin began has failed" who=ann`) == 1
	})
	if r.scans.Load() != 2 {
		t.Errorf("%d scans", r.scans.Load())
	}
}

// Of two processes that are told to rebuild one filter, one reads the keys.
func TestAFleetRebuildsItsFilterOnce(t *testing.T) {
	server := redistest.Start(t)
	r := &rows{ids: []int64{1, 2}, gate: make(chan error)}
	one := admin(t, nil, cacheadmin.WithScan(filtered(t, server.Client(t)), r.scan))
	two := admin(t, nil, cacheadmin.WithScan(filtered(t, server.Client(t)), r.scan))
	if a := post(t, one, "do=rebuildfilter"); a.status != http.StatusAccepted {
		t.Fatalf("%+v", a)
	}
	stands(t, one, "reading")
	if a := post(t, two, "do=rebuildfilter"); a.status != http.StatusAccepted || a.Rebuild.State != "waiting" {
		t.Fatalf("%+v", a)
	}
	r.gate <- nil
	stands(t, one, "done")
	stands(t, two, "done elsewhere")
	if r.scans.Load() != 1 {
		t.Errorf("%d scans", r.scans.Load())
	}
}

func TestARebuildEndsWithItsCache(t *testing.T) {
	r := &rows{ids: []int64{1}, gate: make(chan error)}
	c := filtered(t, nil)
	h := admin(t, nil, cacheadmin.WithScan(c, r.scan))
	if a := post(t, h, "do=rebuildfilter"); a.status != http.StatusAccepted {
		t.Fatalf("%+v", a)
	}
	stands(t, h, "reading")
	_ = c.Close()
	stands(t, h, "failed")
	if a := post(t, h, "do=filter"); !strings.Contains(a.Rebuild.Error, "closed") {
		t.Errorf("%+v", a.Rebuild)
	}
}

// A frail filter panics, as the user's own may.
type frail struct{}

func (frail) MayContain(context.Context, string) bool                 { return true }
func (frail) Rebuild(context.Context, iter.Seq2[string, error]) error { panic("no rebuild") }

func TestAPanicOfARebuildIsAFailure(t *testing.T) {
	c, err := cache.New(nil, func(context.Context, int64) (string, error) { return "v", nil }, cache.Options{Name: "frail", Filter: frail{}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, h := range map[string]http.Handler{
		"of the scan":   admin(t, nil, cacheadmin.WithScan(filtered(t, nil), func(context.Context) iter.Seq2[int64, error] { panic("no scan") })),
		"of the filter": admin(t, nil, cacheadmin.WithScan(c, (&rows{}).scan)),
	} {
		if a := post(t, h, "do=rebuildfilter"); a.status != http.StatusAccepted {
			t.Fatalf("%s: %+v", name, a)
		}
		stands(t, h, "failed")
	}
}

func TestAFilterIsRebuiltOnlyWithAScan(t *testing.T) {
	plain, scan := (&source{}).open(t, nil), (&rows{}).scan
	for _, form := range []string{"do=rebuildfilter", "do=filter"} {
		if a := post(t, admin(t, nil, plain), form); a.status != http.StatusBadRequest || !strings.Contains(a.Error, "WithScan") {
			t.Errorf("%s: %+v", form, a)
		}
	}
	for want, c := range map[string]cacheadmin.Cache{
		`the cache "product" has no filter that can be rebuilt`: cacheadmin.WithScan(plain, scan),
		`the scan of the cache "product" is nil`:                cacheadmin.WithScan(filtered(t, nil), nil),
	} {
		if _, err := cacheadmin.New(cacheadmin.Options{Caches: []cacheadmin.Cache{c}, Allow: anybody}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
}

// A row that another program inserts is announced, so that no process denies it.
func TestAnnounceLetsAKeyPassTheFilter(t *testing.T) {
	r := &rows{ids: []int64{1}, gate: make(chan error, 1)}
	c := filtered(t, nil)
	h := admin(t, nil, cacheadmin.WithScan(c, r.scan))
	r.gate <- nil
	post(t, h, "do=rebuildfilter")
	stands(t, h, "done")
	if _, err := c.Get(t.Context(), 7); !errors.Is(err, cache.ErrNotFound) {
		t.Fatalf("before: %v", err)
	}
	if a := post(t, h, "key=7"); a.status != http.StatusOK || !strings.Contains(a.Found[0].Verdict, "absent: the filter denies it") {
		t.Errorf("before: %+v", a)
	}
	if a := post(t, h, "do=announce&key=7"); a.status != http.StatusOK {
		t.Fatalf("%+v", a)
	}
	if v, err := c.Get(t.Context(), 7); v != "v" || err != nil {
		t.Errorf("after: %q, %v", v, err)
	}
	if a := post(t, h, "do=announce&key=seven"); a.status != http.StatusBadRequest {
		t.Errorf("of a key that is none: %+v", a)
	}
}
