package cache_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A pageFilter knows the ids below 100. It counts how often it is asked.
type pageFilter struct {
	pages  [][]string
	panics bool
}

func (f *pageFilter) MayContain(_ context.Context, id string) bool {
	n, _ := strconv.Atoi(id)
	return n < 100
}

func (f *pageFilter) MayContainMany(ctx context.Context, ids []string) (may []bool) {
	f.pages = append(f.pages, slices.Clone(ids))
	if f.panics {
		panic("no")
	}
	for _, id := range ids {
		may = append(may, f.MayContain(ctx, id))
	}
	return may
}

// A page asks the filter once, for the keys that the local tier has not, and each key gets the
// answer of its own id.
func TestAPageAsksTheFilterOnce(t *testing.T) {
	t.Parallel()
	r := onServer(t, redistest.Start(t), cell{redis: "real", local: true})
	filter := &pageFilter{}
	c := open(r, newRows(r, 1, 2, 3, 50).source(), func(o *cache.Options) { o.Filter = filter })
	c.gives(r, 3, "v1")
	got, err := c.GetMany(r.ctx, []int64{1, 1000, 3, 2, 77, 2000, 50})
	keys := []int64{}
	for key := range got {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if err != nil || !slices.Equal(keys, []int64{1, 2, 3, 50}) {
		r.Errorf("got %v, %v", keys, err)
	}
	if want := []string{"1", "1000", "2", "77", "2000", "50"}; len(filter.pages) != 1 || !slices.Equal(filter.pages[0], want) || c.Stats().Filter != 2 {
		r.Errorf("it was asked for %q, and %d are denied, want %q and 2", filter.pages, c.Stats().Filter, want)
	}
	filter.panics = true
	got, err = c.GetMany(r.ctx, []int64{3, 1000, 2000})
	failed, ok := errors.AsType[*cache.BatchError[int64]](err)
	if len(got) != 1 || !ok || len(failed.Causes) != 2 {
		r.Errorf("of a filter that panics: %v, %v", got, err)
	}
}
