package cache_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// all yields keys without an error.
func all[K any](keys ...K) iter.Seq2[K, error] {
	return func(yield func(K, error) bool) {
		for _, key := range keys {
			if !yield(key, nil) {
				return
			}
		}
	}
}

// filtered is a filter in the process, which abstains until it is filled.
func filtered(r *rig) (*bloom.Filter, func(*cache.Options)) {
	f := redistest.Must(bloom.New(bloom.Options{Capacity: 10_000, FalsePositiveRate: 1e-6}))
	r.Cleanup(func() { _ = f.Close() })
	return f, func(o *cache.Options) { o.Filter = f }
}

// fills checks that a filter which RebuildFilter has filled with a key lets it pass.
func fills[K comparable](t *testing.T, toText func(K) string, key, absent K) {
	t.Helper()
	t.Run(fmt.Sprintf("%T", key), func(t *testing.T) {
		inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
			_, with := filtered(r)
			c := open(r, cache.Source[K, string]{
				Load: func(_ context.Context, key K) (string, error) { return fmt.Sprint(key), nil },
				Key:  toText,
			}, with)
			if err := c.RebuildFilter(r.ctx, all(key)); err != nil {
				r.Fatal(err)
			}
			c.gives(r, key, fmt.Sprint(key))
			if got, err := c.Fetch(r.ctx, absent); !errors.Is(err, cache.ErrNotFound) || got.Tier != cache.TierFilter {
				r.Errorf("a key that is not in the filter: %+v, %v", got, err)
			}
		})
	})
}

func TestRebuildFilterMakesIdsAsTheCacheDoes(t *testing.T) {
	fills(t, nil, int64(-42), int64(42))
	fills(t, nil, "a {b}", "a b")
	fills(t, nil, netip.MustParseAddr("::1"), netip.MustParseAddr("::2"))
	fills(t, func(key int64) string { return "sku-" + strconv.FormatInt(key, 10) }, 1, 2)
}

func TestRebuildFilterEndsWithTheFirstError(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		filter, with := filtered(r)
		source := newRows(r, 1)
		c := open(r, source.source(), with, func(o *cache.Options) { o.MaxKey = 3 })
		var asked []int64
		yields := func(keys ...int64) iter.Seq2[int64, error] {
			asked = nil
			return func(yield func(int64, error) bool) {
				for _, key := range keys {
					var err error
					if key < 0 {
						err = errBroken
					}
					if asked = append(asked, key); !yield(key, err) {
						return
					}
				}
			}
		}
		if err := c.RebuildFilter(r.ctx, yields(1, -1, 2)); !errors.Is(err, errBroken) || !slices.Equal(asked, []int64{1, -1}) {
			r.Errorf("an error of the scan: %v after %v", err, asked)
		}
		if err := c.RebuildFilter(r.ctx, yields(1, 1000, 2)); !errors.Is(err, cache.ErrInvalidKey) || !slices.Equal(asked, []int64{1, 1000}) {
			r.Errorf("an invalid key: %v after %v", err, asked)
		}
		if !filter.Stats().Abstaining {
			r.Error("half a scan denies keys")
		}
		if err := open(r, source.source()).RebuildFilter(r.ctx, yields(1)); err == nil || !strings.Contains(err.Error(), "Options.Filter") {
			r.Errorf("without a filter: %v", err)
		}
		_ = c.Close()
		if err := c.RebuildFilter(r.ctx, yields(1)); !errors.Is(err, cache.ErrClosed) {
			r.Errorf("after Close: %v", err)
		}
	})
}

// A filter that was filled with other ids than the cache's makes 404s of rows that exist,
// without an error anywhere.
func TestAFilterThatDeniesWhatExistsIsNoticed(t *testing.T) {
	wrong := all("product:1", "product:2")
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		for name, meet := range map[string]func(c *probe[int64, string], fill func()){
			"a value in the process": func(c *probe[int64, string], fill func()) {
				c.gives(r, 1, "v1")
				fill()
				time.Sleep(2 * time.Minute) // longer than the local tier keeps it, shorter than its TTL
				_, _ = c.Get(r.ctx, 1)
			},
			"a load in the background": func(c *probe[int64, string], fill func()) {
				fill()
				if err := c.Refresh(r.ctx, 1); err != nil {
					r.Error(err)
				}
			},
		} {
			var log redistest.Log
			filter, with := filtered(r)
			c := open(r, newRows(r, 1).source(), with, func(o *cache.Options) {
				o.Logger, o.TTL, o.Local.TTL = log.Logger(), 10*time.Minute, 30*time.Second
			})
			meet(c, func() {
				if err := filter.Rebuild(r.ctx, wrong); err != nil {
					r.Fatal(err)
				}
			})
			time.Sleep(time.Minute)
			log.Await(r, "the filter denies a key that exists")
			if s, n := c.Stats(), log.Count("level=ERROR"); s.FilterWrong != 1 || n != 1 {
				r.Errorf("%s: counted %d, logged %d times", name, s.FilterWrong, n)
			}
			_ = c.Close()
		}
	})
}

// learner is a filter that learns of keys a moment after it is told, as one that is shared
// with other processes does of their adds.
type learner struct{ from time.Time }

func (l learner) MayContain(context.Context, string) bool { return time.Now().After(l.from) }

func TestAFilterThatLearnsOfAKeyInAMomentIsNotDoubted(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "none", local: true}}, func(r *rig) {
		c := open(r, newRows(r, 1, 2).source(), func(o *cache.Options) { o.Filter = learner{time.Now().Add(2 * time.Second)} })
		if err := c.Set(r.ctx, 1, "v1"); err != nil {
			r.Error(err)
		}
		if err := c.Refresh(r.ctx, 2); err != nil {
			r.Error(err)
		}
		time.Sleep(time.Minute)
		if n := c.Stats().FilterWrong; n != 0 {
			r.Errorf("%d counted", n)
		}
	})
}

// A Set of a key that the filter denies, as it has no Add.
func TestASetThatTheFilterDeniesIsNoticed(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "none", local: true}}, func(r *rig) {
		c := open(r, newRows(r).source(), func(o *cache.Options) { o.Filter = learner{time.Now().Add(time.Hour)} })
		for range 3 {
			if err := c.Set(r.ctx, 1, "v1"); err != nil {
				r.Error(err)
			}
		}
		time.Sleep(time.Minute)
		if n := c.Stats().FilterWrong; n != 1 {
			r.Errorf("%d counted", n)
		}
	})
}
