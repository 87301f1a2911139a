package cache_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// exitsAt2 is a cache without Redis whose Source.Key ends the goroutine that makes the id of key 2.
func exitsAt2() *cache.Cache[int64, string] {
	load := func(context.Context, int64) (string, error) { return "v1", nil }
	return redistest.Must(cache.NewFrom(nil, cache.Source[int64, string]{Load: load, Key: func(key int64) string {
		if key == 2 {
			runtime.Goexit()
		}
		return strconv.FormatInt(key, 10)
	}}, cache.Options{Name: "test"}))
}

// A function of the user's may end its goroutine, as a test's FailNow does. A batch must
// not have opened flights before it that nobody runs then: other callers would wait for
// them without an end, and Close too. The same of a Warm.
func TestAGoexitInABatchLeavesNoFlightBehind(t *testing.T) {
	for name, batch := range map[string]func(ctx context.Context, c *cache.Cache[int64, string]){
		"GetMany": func(ctx context.Context, c *cache.Cache[int64, string]) { _, _ = c.GetMany(ctx, []int64{1, 2}) },
		"Warm": func(ctx context.Context, c *cache.Cache[int64, string]) {
			_ = c.Warm(ctx, slices.Values([]int64{1, 2}), cache.WarmOptions{Rate: -1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := exitsAt2()
				var ended sync.WaitGroup
				ended.Go(func() { batch(t.Context(), c) })
				ended.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if got, err := c.Get(ctx, 1); err != nil || got != "v1" {
					t.Errorf("Get(1) after it: %q, %v", got, err)
				}
				_ = c.Close()
			})
		})
	}
}

// A flight that waits for another process reads what that one has stored. A page opens such a flight beside
// those of keys that it has to load. Catches that nobody runs these, or that the flight never ends, where
// the hook of that read ends its goroutine.
func TestAGoexitInTheReadOfAFlightLeavesNoFlightBehind(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source, stored := newRows(r, 1, 2), make(chan struct{})
		source.slowly(func(_ context.Context, key int64) error {
			if key == 1 {
				<-stored
			}
			return nil
		})
		other := open(r, source.source())
		var all sync.WaitGroup
		all.Go(func() { other.gives(r, 1, "v1") })
		synctest.Wait() // it has the lease
		var reads atomic.Int64
		c := redistest.Must(cache.NewFrom(r.client(), source.source(), r.options([]func(*cache.Options){func(o *cache.Options) {
			o.Hooks.Read = func(ctx context.Context, _ cache.Op) (context.Context, func(cache.Outcome)) {
				if reads.Add(1) == 2 { // the first is the page's own
					runtime.Goexit()
				}
				return ctx, nil
			}
		}})))
		all.Go(func() { _, _ = c.GetMany(r.ctx, []int64{1, 2}) })
		synctest.Wait()
		close(stored)
		all.Wait()
		if n := source.loads(2); n != 1 || reads.Load() < 2 {
			r.Errorf("%d loads of the key that was missing, %d reads", n, reads.Load())
		}
		ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
		defer cancel()
		for _, key := range []int64{1, 2} {
			if got, err := c.Get(ctx, key); err != nil || got != "v1" {
				r.Errorf("Get(%d) after it: %q, %v", key, got, err)
			}
		}
		_ = c.Close()
	})
}

// A Set says that the source has another value now. If its value cannot be encoded, the
// old one must not go on to answer.
func TestASetThatCannotBeEncodedEndsTheOldValue(t *testing.T) {
	inCells(t, withRedis, func(r *rig) {
		source := newRows(r, 1)
		var broken bool
		c := open(r, source.source(), func(o *cache.Options) { o.Codec = sometimes{&broken} })
		c.gives(r, 1, "v1")
		source.put(1, "v2")
		broken = true
		if err := c.Set(r.ctx, 1, "v2"); !errors.Is(err, errBroken) {
			r.Errorf("Set: %v", err)
		}
		broken = false
		c.gives(r, 1, "v2")
	})
}

// sometimes is a codec of texts that fails while broken.
type sometimes struct{ broken *bool }

func (s sometimes) Marshal(v any) ([]byte, error) {
	if *s.broken {
		return nil, errBroken
	}
	return []byte(v.(string)), nil
}

func (s sometimes) Unmarshal(data []byte, v any) error {
	*v.(*string) = string(data)
	return nil
}

// A refresh that finds no row any more ends the value that it was to refresh. A null
// beside that value would be hidden by it for the rest of its local life.
func TestARefreshThatFindsNoRowEndsTheLocalValue(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true}, {redis: "mini", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source(), func(o *cache.Options) {
			o.TTL, o.Jitter, o.StaleWhileRevalidate = time.Second, -1, time.Hour
		})
		c.gives(r, 1, "v1")
		time.Sleep(1500 * time.Millisecond)
		delete(source.values, 1)
		c.gives(r, 1, "v1") // stale, and refreshed
		time.Sleep(100 * time.Millisecond)
		c.gives404(r, 1)
	})
}

// An error of a load counts once, by one name, also where GetMany hands it on.
func TestABatchNamesAnErrorOnce(t *testing.T) {
	inCells(t, []cell{{redis: "none"}}, func(r *rig) {
		source := newRows(r, 1)
		source.slowly(func(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() })
		c := open(r, source.source(), within(time.Second))
		_, err := c.GetMany(r.ctx, []int64{1})
		var batch *cache.BatchError[int64]
		if !errors.As(err, &batch) || batch.Causes[1].Error() != "cache: load timed out: breaker: call timed out after 1s" {
			r.Errorf("got %v", err)
		}
	})
}

// The function that ends a hook is the user's, and may end its goroutine. Without the
// deferred end of the flight, the callers of the key and Close wait without an end.
func TestAGoexitOfAHookEndsTheFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first atomic.Bool
		c := redistest.Must(cache.New(nil, func(context.Context, int64) (string, error) {
			time.Sleep(time.Second)
			return "v1", nil
		}, cache.Options{Name: "test", Hooks: cache.Hooks{Rebuild: func(ctx context.Context, _ cache.Op) (context.Context, func(cache.Outcome)) {
			return ctx, func(cache.Outcome) {
				if first.CompareAndSwap(false, true) {
					runtime.Goexit()
				}
			}
		}}}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if got, err := c.Get(ctx, 1); err != nil || got != "v1" {
			t.Errorf("Get: %q, %v", got, err)
		}
		_ = c.Close()
	})
}

// A nil pointer in an error is an error, and its Error method panics.
type unreadable struct{ text string }

func (u *unreadable) Error() string { return u.text }

// The error of LoadMany was first read at the end of the flight, which then never came: a
// Refresh returned nil, as if it had worked, and Close did not return.
func TestAnErrorThatCannotBeReadIsAPanicOfTheLoader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err *unreadable
		c := redistest.Must(cache.NewFrom(nil, cache.Source[int64, string]{LoadMany: func(context.Context, []int64) (map[int64]string, error) {
			return nil, err
		}}, cache.Options{Name: "test"}))
		var panicked *cache.PanicError
		if err := c.Refresh(t.Context(), 1); !errors.As(err, &panicked) {
			t.Errorf("Refresh: %v", err)
		}
		if _, err := c.Get(t.Context(), 2); !errors.As(err, &panicked) {
			t.Errorf("Get: %v", err)
		}
		_ = c.Close()
	})
}
