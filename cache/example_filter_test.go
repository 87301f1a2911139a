package cache_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
)

// both asks one filter, and tells two of new keys: of the first all that a filter has, and
// the other one learns.
type both struct {
	*bloom.Filter
	learns *bloom.Filter
}

func (b both) Add(ctx context.Context, ids ...string) error {
	return errors.Join(b.Filter.Add(ctx, ids...), b.learns.Add(ctx, ids...))
}

func (b both) Ensure(ctx context.Context, ids ...string) error {
	return errors.Join(b.Filter.Ensure(ctx, ids...), b.learns.Ensure(ctx, ids...))
}

// A filter that is full gives way to a larger one, in three deployments: no process may ask
// a filter to which another process does not add.
func ExampleCache_RebuildFilter_resize() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{42: "lamp"}}
	open := func(name string, capacity uint64) *bloom.Filter {
		f, err := bloom.Open(ctx, rdb, bloom.Options{Name: name, Capacity: capacity, MaxTransaction: -1})
		if err != nil {
			log.Fatal(err)
		}
		return f
	}
	small, large := open("product", 1000), open("product-2", 100_000)
	defer small.Close()
	defer large.Close()

	for _, filter := range []cache.Filter{both{small, large}, both{large, small}, large} { // each deployment
		products, err := cache.New(rdb, store.Product, cache.Options{Name: "product", Filter: filter})
		if err != nil {
			log.Fatal(err)
		}
		err = products.RebuildFilter(ctx, store.Keys) // of the filter that it asks
		fmt.Println("rebuilt", err)
		_, err = products.Fetch(ctx, 7)
		fmt.Println(err)
		_ = products.Close()
	}
	// Output:
	// rebuilt <nil>
	// cache: not found
	// rebuilt <nil>
	// cache: not found
	// rebuilt <nil>
	// cache: not found
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
