package cache_test

import (
	"context"
	"fmt"
	"iter"
	"log"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
)

// A filter that is full is opened with a larger Capacity by the next deployment, whose first
// rebuild resizes it for every process that shares it.
func ExampleCache_RebuildFilter_resize() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{42: "lamp"}}
	for _, capacity := range []uint64{1000, 100_000} { // each deployment
		exists, err := bloom.Open(ctx, rdb, bloom.Options{Name: "product", Capacity: capacity, MaxTransaction: -1})
		if err != nil {
			log.Fatal(err)
		}
		products, err := cache.New(rdb, store.Product, cache.Options{Name: "product", Filter: exists})
		if err != nil {
			log.Fatal(err)
		}
		if err := products.RebuildFilter(ctx, store.Keys); err != nil {
			log.Fatal(err)
		}
		fmt.Println(exists.Stats().Capacity)
		_, _ = products.Close(), exists.Close()
	}
	// Output:
	// 1000
	// 100000
}

// KeepFilter runs on a goroutine of its own in every process, until its context ends.
func ExampleCache_KeepFilter() {
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{42: "lamp"}}
	ctx, stop := context.WithCancel(context.Background())
	exists, err := bloom.Open(ctx, rdb, bloom.Options{Name: "product", Capacity: 100_000, MaxTransaction: -1})
	if err != nil {
		log.Fatal(err)
	}
	defer exists.Close()
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product", Filter: exists})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()

	ended := make(chan error)
	go func() {
		ended <- products.KeepFilter(ctx, 24*time.Hour, func(context.Context) iter.Seq2[int64, error] { return store.Keys })
	}()
	for products.Stats().FilterRebuild.Ended.IsZero() { // until the first rebuild every key passes
		time.Sleep(time.Millisecond)
	}
	got, err := products.Fetch(ctx, 7)
	fmt.Println(got.Tier, err)

	stop()
	fmt.Println(<-ended)
	// Output:
	// filter cache: not found
	// context canceled
}

// A growing filter lets the newest ids pass, which a writer in another language may have inserted a moment ago. It is for ids
// that the database counts up.
type growing struct {
	*bloom.Filter
	newest atomic.Int64 // the highest id of a while ago, all of whose rows the filter knows by now; 0: not known yet
	room   int64        // how many ids the database may have made since
}

func (g *growing) isNew(id string) bool {
	n, err := strconv.ParseInt(id, 10, 64)
	newest := g.newest.Load()
	return err == nil && n > newest && (newest == 0 || n <= newest+g.room)
}

func (g *growing) MayContain(ctx context.Context, id string) bool {
	return g.isNew(id) || g.Filter.MayContain(ctx, id)
}

func (g *growing) MayContainMany(ctx context.Context, ids []string) []bool {
	may := g.Filter.MayContainMany(ctx, ids)
	for i, id := range ids {
		may[i] = may[i] || g.isNew(id)
	}
	return may
}

// grow reads the highest id until ctx ends, and uses it once a change feed has had the time lag to tell the filter of its row.
func (g *growing) grow(ctx context.Context, lag time.Duration, highest func(context.Context) (int64, error)) {
	for ctx.Err() == nil {
		id, err := highest(ctx) // SELECT max(id) FROM product
		select {
		case <-ctx.Done():
		case <-time.After(lag):
			if err == nil {
				g.newest.Store(id)
			}
		}
	}
}

// Ids that grow behind a filter, with a writer that does not know it: the newest ids pass, older ones and ids that nobody has
// made yet are for the filter.
func ExampleFilter() {
	ctx, stop := context.WithCancel(context.Background())
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{1: "lamp", 42: "desk"}}
	filter, err := bloom.Open(ctx, rdb, bloom.Options{Name: "product", Capacity: 100_000, MaxTransaction: -1})
	if err != nil {
		log.Fatal(err)
	}
	defer filter.Close()

	exists := &growing{Filter: filter, room: 10_000}
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product", Filter: exists})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()
	if err := products.RebuildFilter(ctx, store.Keys); err != nil {
		log.Fatal(err)
	}
	grown := make(chan struct{})
	go func() {
		defer close(grown)
		exists.grow(ctx, time.Millisecond, func(context.Context) (int64, error) { return 42, nil })
	}()
	for exists.newest.Load() == 0 { // until then all ids pass
		time.Sleep(time.Millisecond)
	}
	stop()
	<-grown

	_ = store.Rename(context.Background(), 43, "chair") // INSERT, by a writer in another language
	for _, id := range []int64{43, 7, 1_000_000} {
		got, err := products.Fetch(context.Background(), id)
		fmt.Println(id, got.Value.Name, got.Tier, err)
	}
	_ = store.Rename(context.Background(), 44, "shelf")
	fmt.Println(products.GetMany(context.Background(), []int64{44, 7}))
	// Output:
	//   the database is asked for 43
	// 43 chair source <nil>
	// 7  filter cache: not found
	// 1000000  filter cache: not found
	//   the database is asked for 44
	// map[44:{44 shelf}] <nil>
}
