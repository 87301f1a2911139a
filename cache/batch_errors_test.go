package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/levee-go/levee/cache"
)

// An error of LoadMany is the error of all keys of its call, whatever the map holds: a key that is
// missing there may exist. ErrNotFound says of all of them that they do not exist.
func TestAnErrorOfLoadManyIsThatOfItsKeys(t *testing.T) {
	broken := errors.New("disk full")
	for name, test := range map[string]struct {
		load func() error
		is   func(error) bool
	}{
		"an error":  {func() error { return broken }, func(err error) bool { return errors.Is(err, broken) }},
		"a panic":   {func() error { panic("bug") }, func(err error) bool { var p *cache.PanicError; return errors.As(err, &p) && p.Value == "bug" }},
		"not found": {func() error { return fmt.Errorf("no rows: %w", cache.ErrNotFound) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, fewCells, func(r *rig) {
				r.known(1, 2, 3)
				c := open(r, cache.Source[int64, string]{LoadMany: func(_ context.Context, keys []int64) (map[int64]string, error) {
					return map[int64]string{keys[0]: "v1"}, test.load()
				}})
				got, err := c.GetMany(r.ctx, []int64{1, 2, 3})
				if len(got) != 0 {
					r.Errorf("want no values, got %v", got)
				}
				if test.is == nil {
					if err != nil {
						r.Errorf("want no error, got %v", err)
					}
					return
				}
				var batch *cache.BatchError[int64]
				if !errors.As(err, &batch) || len(batch.Causes) != 3 {
					r.Fatalf("want 3 causes, got %v", err)
				}
				for key, cause := range batch.Causes {
					if !test.is(cause) {
						r.Errorf("want %s for %v, got %v", name, key, cause)
					}
				}
			})
		})
	}
}
