package cost

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

// BenchmarkCold is a page of keys that are nowhere: "many" of a source with LoadMany, "single" of one
// with Load; "crowd" and "gathered" are as many callers of these at one moment, each with a key of its own.
//
//	go test -run '^$' -bench Cold -benchmem -count 5 ./internal/cost
func BenchmarkCold(b *testing.B) {
	many := cache.Source[int64, string]{LoadMany: func(_ context.Context, keys []int64) (map[int64]string, error) {
		found := make(map[int64]string, len(keys))
		for _, key := range keys {
			found[key] = "v"
		}
		return found, nil
	}}
	single := cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) { return "v", nil }}
	page := func(ctx context.Context, c *cache.Cache[int64, string], keys []int64) bool {
		got, err := c.GetMany(ctx, keys)
		return err == nil && len(got) == len(keys)
	}
	crowd := func(ctx context.Context, c *cache.Cache[int64, string], keys []int64) bool {
		var all sync.WaitGroup
		for _, key := range keys {
			all.Go(func() { redistest.Must(c.Get(ctx, key)) })
		}
		all.Wait()
		return true
	}
	for _, kind := range []struct {
		name   string
		source cache.Source[int64, string]
		ask    func(context.Context, *cache.Cache[int64, string], []int64) bool
	}{{"many", many, page}, {"single", single, page}, {"crowd", single, crowd}, {"gathered", many, crowd}} {
		for _, size := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", kind.name, size), func(b *testing.B) {
				server := redistest.Start(b)
				c := redistest.Must(cache.NewFrom(server.Client(b), kind.source, cache.Options{
					Name: "cold", Local: localcache.Options{MaxBytes: -1},
				}))
				defer c.Close()
				next := int64(0)
				keys := make([]int64, size)
				b.ReportAllocs()
				for b.Loop() {
					for i := range keys {
						next++
						keys[i] = next
					}
					if !kind.ask(b.Context(), c, keys) {
						b.Fatal("a wrong answer")
					}
				}
			})
		}
	}
}
