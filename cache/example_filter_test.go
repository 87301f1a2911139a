package cache_test

import (
	"context"
	"fmt"
	"iter"
	"log"
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
