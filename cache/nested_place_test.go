package cache_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A loader of a nested load hands its context to a goroutine of its own, which goes on to read when all those
// loads are over.
//
// Defect: the context is inside for as long as it lives, and MaxConcurrent does not bound what is read with it.
func TestAContextThatOutlivesItsLoadIsBoundAsAnyOther(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "none"}}, func(r *rig) {
		shared := redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 1, MaxDegraded: 1}))
		with := func(name string) func(*cache.Options) {
			return func(o *cache.Options) { o.Name, o.Breaker = name, shared }
		}
		source := newRows(r, 0, 1, 2, 3, 4, 5, 6, 7)
		source.slowly(func(context.Context, int64) error { time.Sleep(10 * time.Millisecond); return nil })
		rows := open(r, source.source(), with("row"))
		handed := make(chan context.Context, 1)
		parts := open(r, cache.Source[int64, string]{Load: func(ctx context.Context, _ int64) (string, error) {
			handed <- context.WithoutCancel(ctx)
			return "part", nil
		}}, with("part"))
		pages := open(r, cache.Source[int64, string]{Load: parts.Get}, with("page"))
		pages.gives(r, 0, "part")
		ctx := <-handed
		time.Sleep(time.Second)
		var readers sync.WaitGroup
		for key := range int64(8) {
			readers.Go(func() {
				if v, err := rows.Get(ctx, key); v != "v1" || err != nil {
					r.Errorf("Get(%s): %q, %v", strconv.FormatInt(key, 10), v, err)
				}
			})
		}
		readers.Wait()
		if n := source.allAtOnce(); n > 1 {
			r.Errorf("%d loads at one time, and MaxConcurrent is 1", n)
		}
	})
}
