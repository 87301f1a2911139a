package cache_test

import (
	"fmt"
	"testing"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// tagged is a source whose row n is of the tenant n/10 and of everybody.
func (s *rows) tagged() cache.Source[int64, string] {
	src := s.source()
	src.Tags = func(key int64, _ string) []string { return []string{tenant(key / 10), "everybody"} }
	return src
}

func tenant(n int64) string { return fmt.Sprint("tenant:", n) }

// A stored value with more tags than there is room for could not be cleared by all of them. It stays in
// its process, which knows all its tags.
func TestAValueWithTooManyTagsStaysInItsProcess(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
		source := newRows(r, 1)
		src := source.source()
		src.Tags = func(int64, string) (tags []string) {
			for n := range int64(17) {
				tags = append(tags, tenant(n))
			}
			return tags
		}
		c := open(r, src)
		c.gives(r, 1, "v1")
		if n := r.rdb.Exists(r.ctx, valueKey(1)).Val(); n != 0 || c.Stats().Unpublished != 1 {
			r.Errorf("%d values stored, %d not", n, c.Stats().Unpublished)
		}
		c.comesFrom(r, 1, cache.TierLocal)
		source.put(1, "v2")
		if err := c.ClearTags(r.ctx, tenant(16)); err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v2")
	})
}
