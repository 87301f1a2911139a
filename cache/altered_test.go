package cache_test

import (
	"context"
	"testing"

	"github.com/levee-go/levee/cache"
)

// A value that Redis would give back as another is served as the source has it, by each process
// for itself, and an old one in Redis does not go on to be served.
func TestAValueThatJSONAltersIsServedAndNotStored(t *testing.T) {
	const id = int64(4244637855813302974)
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		src := cache.Source[int64, map[string]any]{Load: func(context.Context, int64) (map[string]any, error) {
			return map[string]any{"id": id}, nil
		}}
		for range 2 {
			c := open(r, src)
			for range 2 {
				if got, err := c.Get(r.ctx, 1); err != nil || got["id"] != id {
					r.Errorf("Get: %v, %v", got, err)
				}
			}
			if err := c.Set(r.ctx, 1, map[string]any{"id": id}); err != nil {
				r.Errorf("Set: %v", err)
			}
			if r.rdb != nil && (r.rdb.Exists(r.ctx, valueKey(1)).Val() != 0 || c.Stats().Altered == 0 || c.Stats().Unpublished == 0) {
				r.Errorf("it is stored, or not counted: %+v", c.Stats())
			}
		}
		if r.rdb == nil {
			return
		}
		named := func(o *cache.Options) { o.Codec, o.Schema = cache.JSON, 7 }
		open(r, src, named)
		if got, err := open(r, src, named).Get(r.ctx, 1); err != nil || got == nil {
			r.Errorf("with the name of the codec: %v, %v", got, err)
		}
	})
}
