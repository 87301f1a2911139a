package cache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/fleet"
)

// A loader that reads another cache returns errors of that one, and this one has an old value.
//
// Defect: ErrClosed and ErrInvalidKey of the other are taken for this one's own, and switch the old value off.
func TestErrorsOfAnotherCacheAreThoseOfALoad(t *testing.T) {
	for _, err := range []error{
		cache.ErrClosed, cache.ErrInvalidKey, cache.ErrNotCached, cache.ErrReentrant, cache.ErrOverloaded, cache.ErrLoadTimeout, cache.ErrUnavailable,
		fmt.Errorf("parts: %w", cache.ErrClosed), errors.Join(errors.New("two"), cache.ErrInvalidKey), errors.Join(cache.ErrOverloaded, cache.ErrNotFound),
		&cache.BatchError[int]{Causes: map[int]error{1: cache.ErrClosed}},
	} {
		t.Run(err.Error(), func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
				source := newRows(r, 1)
				c := open(r, source.source(), func(o *cache.Options) {
					o.TTL, o.StaleWhileRevalidate, o.Rebuild.ErrorHold = time.Second, -1, -1
				})
				c.gives(r, 1, "v1")
				time.Sleep(2 * time.Second)
				source.slow = func(context.Context, int64) error { return err }
				if got, failed := c.Fetch(r.ctx, 1); got.Value != "v1" || !got.Stale || failed != nil {
					r.Errorf("with an old value: %+v, %v", got, failed)
				}
				source.put(2, "v1")
				r.known(2)
				_, failed := c.Get(r.ctx, 2)
				if failed == nil || errors.Is(failed, cache.ErrClosed) || errors.Is(failed, cache.ErrInvalidKey) || errors.Is(failed, cache.ErrNotFound) {
					r.Errorf("without one: %v", failed)
				}
			})
		})
	}
}

// A loader that asks another breaker returns its errors, and those of a loader of its own. Each is an
// error of the load: the loader was called, and this cache has nothing to do with the text.
//
// Defect: they become this cache's ErrOverloaded, ErrLoadTimeout or ErrUnavailable, lose what the loader
// has said around them, and Warm calls the loader again and again.
func TestErrorsOfAnotherBreakerAreThoseOfALoad(t *testing.T) {
	for _, err := range []error{
		breaker.ErrOpen, breaker.ErrLimited, breaker.ErrTimeout, fleet.ErrUnavailable,
		fmt.Errorf("prices: %w", breaker.ErrOpen), fmt.Errorf("prices: %w", &cache.PanicError{Value: "boom"}),
		errors.New("mutexrebuild: looks like one of ours"),
	} {
		t.Run(err.Error(), func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "none", local: true}}, func(r *rig) {
				source := newRows(r, 1)
				source.slow = func(context.Context, int64) error { return err }
				c := open(r, source.source(), func(o *cache.Options) { o.Rebuild.ErrorHold = -1 })
				_, failed := c.Get(r.ctx, 1)
				if failed == nil || failed.Error() != err.Error() || !errors.Is(failed, err) {
					r.Errorf("Get: %v, want %v", failed, err)
				}
				for _, not := range []error{cache.ErrOverloaded, cache.ErrLoadTimeout, cache.ErrUnavailable} {
					if errors.Is(failed, not) {
						r.Errorf("Get: %v, which matches %v", failed, not)
					}
				}
				if r.rdb == nil {
					return
				}
				before := source.loads(1)
				failed = c.Warm(r.ctx, slices.Values([]int64{1}), cache.WarmOptions{})
				if n := source.loads(1) - before; n != 1 || !errors.Is(failed, err) {
					r.Errorf("Warm: %d loads, %v", n, failed)
				}
			})
		})
	}
}

// A handler that reports a committed Write as failed makes its user repeat it.
func TestAWriteThatHasCommittedIsNoErrorOfItsHandler(t *testing.T) {
	failed := errors.New("no rows were changed")
	for err, want := range map[error]error{
		nil:                     nil,
		cache.ErrNotInvalidated: nil,
		failed:                  failed,
		cache.ErrClosed:         cache.ErrClosed,
	} {
		if got := cache.Committed(err); got != want {
			t.Errorf("of %v it returns %v, want %v", err, got, want)
		}
	}
	if err := cache.Committed(fmt.Errorf("the rename: %w", cache.ErrNotInvalidated)); err != nil {
		t.Errorf("of a wrapped one it returns %v", err)
	}
}
