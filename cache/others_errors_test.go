package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
)

// A loader that reads another cache returns errors of that one, and this one has an old value.
//
// Defect: ErrClosed and ErrInvalidKey of the other are taken for this one's own, and switch the old value off.
func TestErrorsOfAnotherCacheAreThoseOfALoad(t *testing.T) {
	for _, err := range []error{
		cache.ErrClosed, cache.ErrInvalidKey, cache.ErrNotCached, cache.ErrReentrant, cache.ErrOverloaded, cache.ErrLoadTimeout, cache.ErrUnavailable,
		fmt.Errorf("parts: %w", cache.ErrClosed), errors.Join(errors.New("two"), cache.ErrInvalidKey), errors.Join(cache.ErrOverloaded, cache.ErrNotFound),
		&cache.BatchError{Causes: map[any]error{1: cache.ErrClosed}},
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
