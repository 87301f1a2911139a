package cache_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// written opens a cache that holds v1 of key 1, with v2 in the source.
func written(r *rig) (*probe[int64, string], *rows) {
	source := newRows(r, 1)
	c := open(r, source.source())
	c.gives(r, 1, "v1")
	c.comesFrom(r, 1, r.near())
	return c, source
}

func TestWriteRunsTxAndInvalidates(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		c, source := written(r)
		type key struct{}
		ctx := context.WithValue(r.ctx, key{}, "mine")
		err := c.Write(ctx, []int64{1, 2}, func(ctx context.Context) error {
			if ctx.Value(key{}) != "mine" {
				r.Error("tx does not get the caller's context")
			}
			source.put(1, "v2")
			source.put(2, "new") // this one the filter learns
			return nil
		})
		if err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v2")
		c.gives(r, 2, "new")
		c.comesFrom(r, 2, r.near()) // the keys are open again
	})
}

// A transaction that reports failure may have committed all the same.
func TestWriteGivesTheErrorOfTxAndInvalidates(t *testing.T) {
	failed := errors.New("connection lost during commit")
	inCells(t, everyCell(), func(r *rig) {
		c, source := written(r)
		err := c.Write(r.ctx, []int64{1}, func(context.Context) error {
			source.put(1, "v2")
			return failed
		})
		if !errors.Is(err, failed) || errors.Is(err, cache.ErrNotInvalidated) {
			r.Errorf("Write: %v", err)
		}
		c.gives(r, 1, "v2")
	})
}

func TestAPanicOfTxGoesOnAndInvalidates(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		c, source := written(r)
		func() {
			defer func() {
				if got := recover(); got != "bug in tx" {
					r.Errorf("recovered %v", got)
				}
			}()
			_ = c.Write(r.ctx, []int64{1}, func(context.Context) error {
				source.put(1, "v2")
				panic("bug in tx")
			})
			r.Error("Write returns")
		}()
		c.gives(r, 1, "v2")
		c.comesFrom(r, 1, r.near())
	})
}

// As t.FailNow does in a test of the user's.
func TestAGoexitOfTxInvalidates(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		c, source := written(r)
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = c.Write(r.ctx, []int64{1}, func(context.Context) error {
				source.put(1, "v2")
				runtime.Goexit()
				return nil
			})
			r.Error("Write returns")
		})
		wg.Wait()
		c.gives(r, 1, "v2")
		c.comesFrom(r, 1, r.near())
	})
}

// Without a context of its own the invalidation would not be sent.
func TestWriteInvalidatesThoughTheCallerHasLeft(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		c, source := written(r)
		ctx, cancel := context.WithCancel(r.ctx)
		err := c.Write(ctx, []int64{1}, func(context.Context) error {
			source.put(1, "v2")
			cancel()
			return nil
		})
		if err != nil { // tx has succeeded and the keys are invalidated: there is nothing to report
			r.Errorf("Write: %v", err)
		}
		c.gives(r, 1, "v2")
	})
}

func TestWriteDoesNothingWithAnEndedContext(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		c, source := written(r)
		loads := source.loads(1)
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		err := c.Write(ctx, []int64{1}, func(context.Context) error { r.Error("tx runs"); return nil })
		if !errors.Is(err, context.Canceled) {
			r.Errorf("Write: %v", err)
		}
		c.gives(r, 1, "v1")
		if r.kept() && source.loads(1) != loads {
			r.Error("the key has been invalidated")
		}
	})
}

func TestWriteOfNothing(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		c, _ := written(r)
		ran := false
		if err := c.Write(r.ctx, nil, func(context.Context) error { ran = true; return nil }); err != nil || !ran {
			r.Errorf("Write without keys: ran %v, %v", ran, err)
		}
		if err := c.Write(r.ctx, []int64{1}, nil); err == nil {
			r.Error("Write without tx")
		}
	})
}

// stored is what Redis holds of a key, if there is a Redis.
func (r *rig) stored(key int64) string {
	if r.rdb == nil {
		return ""
	}
	return r.rdb.Get(r.ctx, valueKey(key)).Val()
}

// Readers during a write see one or the other value, and none of it stays; their process
// keeps it no longer than the write takes. The hold is what this tests: without it, who reads
// v1 during tx publishes it, and without the second invalidation it would stay. A page of the
// keys is one call of the source, during the write and after it.
func TestNothingReadDuringAWriteIsKept(t *testing.T) {
	for name, test := range map[string]struct {
		n         int64
		elsewhere bool
	}{
		"a key": {1, false}, "a key, written elsewhere": {1, true},
		"a page": {10, false}, "a page, written elsewhere": {10, true},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, everyCell(), func(r *rig) {
				if test.elsewhere && r.rdb == nil {
					return
				}
				keys, source := upTo(1, test.n), newBatches(r, 1, test.n)
				c := open(r, source.alike(test.n))
				writer := c
				if test.elsewhere {
					writer = open(r, source.alike(test.n))
				} else {
					c.givesMany(r, keys, "v1")
					c.comesFrom(r, 1, r.near())
				}
				given := func() (values []string) {
					got, err := c.fetches(r, keys)
					if err != nil || len(got) != len(keys) {
						r.Errorf("%d values, %v", len(got), err)
					}
					for _, result := range got {
						values = append(values, result.Value)
					}
					slices.Sort(values)
					return slices.Compact(values)
				}
				err := writer.Write(r.ctx, keys, func(context.Context) error {
					expired := r.stored(1) // the old value, which answers if a load fails
					source.forget()
					for n := range 3 {
						got, err := c.fetches(r, keys) // the transaction has not committed
						if err != nil || len(got) != len(keys) {
							r.Errorf("during the write: %+v, %v", got, err)
						}
						for key, got := range got {
							if want := r.withoutRedis(n); got.Value != "v1" || !test.elsewhere && r.rdb != nil && got.Tier != want {
								r.Errorf("read %d of %d during the write: %+v, want v1 from %v", n, key, got, want)
							}
						}
						if _, calls := source.loads(); calls > n+1 {
							r.Errorf("%d calls for %d reads", calls, n+1)
						}
						if r.stored(1) != expired {
							r.Error("a value has been published during the write")
						}
					}
					for _, key := range keys {
						source.put(key, "v2")
					}
					source.forget()
					return nil
				})
				r.do(err)
				if test.elsewhere {
					r.eventually("messages have told the reader", func() bool { return slices.Equal(given(), []string{"v2"}) })
				}
				for n := range 20 {
					if got := given(); !slices.Equal(got, []string{"v2"}) {
						r.Errorf("after the write: %v", got)
					}
					if _, calls := source.loads(); n == 0 && !test.elsewhere && calls != 1 {
						r.Errorf("%d calls after the write, want one", calls)
					}
				}
				if _, calls := source.loads(); r.rdb != nil && !r.local && calls != 1 {
					r.Errorf("%d calls after the write, want one", calls)
				}
				c.comesFrom(r, 1, r.near())
			})
		})
	}
}

// The first writer to end must not open the key for readers of the second.
func TestHoldsOfTwoWritersStandSideBySide(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "real", local: true}}, func(r *rig) {
		c, source := written(r)
		other := open(r, source.source())
		err := c.Write(r.ctx, []int64{1}, func(context.Context) error {
			err := other.Write(r.ctx, []int64{1}, func(context.Context) error { return nil })
			c.gives(r, 1, "v1")
			if r.rdb.Exists(r.ctx, valueKey(1)).Val() != 0 {
				r.Error("the key is open")
			}
			source.put(1, "v2")
			return err
		})
		if err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v2")
		c.comesFrom(r, 1, r.near())
	})
}

var tooLong = strings.Repeat("x", 1000)

// brokenFilter lets everything pass, and learns nothing.
type brokenFilter struct{}

func (brokenFilter) MayContain(context.Context, string) bool { return true }
func (brokenFilter) Add(context.Context, ...string) error    { return errBroken }

// A row that is cached by id and by name changes in one transaction.
func TestOneWriteChangesKeysOfSeveralCaches(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		products, source := written(r)
		ids := map[string]int64{"old": 1}
		var mu sync.Mutex
		bySlug := open(r, cache.Source[string, int64]{Load: func(_ context.Context, slug string) (int64, error) {
			mu.Lock()
			defer mu.Unlock()
			if id, ok := ids[slug]; ok {
				return id, nil
			}
			return 0, cache.ErrNotFound
		}}, func(o *cache.Options) { o.Name, o.Filter = "slug", nil })
		bySlug.gives(r, "old", int64(1))
		bySlug.gives404(r, "new")
		err := cache.Write(r.ctx, func(context.Context) error {
			source.put(1, "v2")
			mu.Lock()
			defer mu.Unlock()
			ids = map[string]int64{"new": 1}
			return nil
		}, products.Changes(1), bySlug.Changes("old", "new"))
		if err != nil {
			r.Fatal(err)
		}
		products.gives(r, 1, "v2")
		bySlug.gives404(r, "old")
		bySlug.gives(r, "new", int64(1))
	})
}

// What is wrong with one of the caches must be known before the transaction, not when it
// has committed.
func TestAWriteOverSeveralCachesRunsForAllOrNone(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		a, source := written(r)
		b := open(r, cache.Source[string, string]{Load: func(context.Context, string) (string, error) { return "", nil }},
			func(o *cache.Options) { o.Name = "other" })
		closed := open(r, source.source(), func(o *cache.Options) { o.Name = "closed" })
		if err := closed.Close(); err != nil {
			r.Error(err)
		}
		for name, test := range map[string]struct {
			changes cache.Changes
			want    error
		}{
			"a bad key":      {b.Changes(tooLong), cache.ErrInvalidKey},
			"a closed cache": {closed.Changes(1), cache.ErrClosed},
			"no cache":       {cache.Changes{}, nil},
		} {
			err := cache.Write(r.ctx, func(context.Context) error { r.Errorf("%s: tx runs", name); return nil }, a.Changes(1), test.changes)
			if err == nil || test.want != nil && !errors.Is(err, test.want) {
				r.Errorf("%s: %v", name, err)
			}
		}
		a.gives(r, 1, "v1")
		ran := false
		if err := cache.Write(r.ctx, func(context.Context) error { ran = true; return nil }); err != nil || !ran {
			r.Errorf("without keys: ran %v, %v", ran, err)
		}
	})
}

// One after the other, the holds of ten caches would take ten round trips, and so would
// their ends.
func TestTheCachesOfAWriteAreAskedAtOnce(t *testing.T) {
	t.Parallel()
	r := onServer(t, redistest.Start(t), cell{redis: "real"})
	const caches = 3
	source := newRows(r, 1)
	together := &together{n: caches, all: make(chan struct{})}
	var changes []cache.Changes
	for i := range caches {
		rdb := r.client().(*redis.Client)
		rdb.AddHook(together)
		c := openOn(r, rdb, source.source(), func(o *cache.Options) { o.Name, o.RedisTimeout = "c"+strconv.Itoa(i), 20*time.Second })
		changes = append(changes, c.Changes(1))
	}
	if err := cache.Write(r.ctx, func(context.Context) error { together.again(); return nil }, changes...); err != nil {
		r.Error(err)
	}
	if together.late {
		r.Error("one cache waits for the other's answer")
	}
}

// together is a hook that keeps scripts back until n of them are under way.
type together struct {
	n int

	mu   sync.Mutex // guards what follows
	in   int
	all  chan struct{} // closed when all are there
	late bool          // one has waited for the others in vain
}

func (h *together) again() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.in, h.all = 0, make(chan struct{})
}

func (h *together) arrive(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if !strings.HasPrefix(cmd.Name(), "eval") {
			continue
		}
		h.mu.Lock()
		if h.in++; h.in == h.n {
			close(h.all)
		}
		all := h.all
		h.mu.Unlock()
		select {
		case <-all:
		case <-time.After(5 * time.Second):
			h.mu.Lock()
			h.late = true
			h.mu.Unlock()
		}
	}
}

func (h *together) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *together) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { h.arrive(cmd); return next(ctx, cmd) }
}
func (h *together) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { h.arrive(cmds...); return next(ctx, cmds) }
}
