package bloom_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
)

func Example() {
	ctx := context.Background()
	exists, err := bloom.New(bloom.Options{Capacity: 1_000_000})
	if err != nil {
		panic(err)
	}
	defer exists.Close()
	fmt.Println(exists.MayContain(ctx, "product:7")) // it does not know yet

	// All that exist, from the database.
	products := func(yield func(string, error) bool) {
		for _, id := range []string{"product:1", "product:2", "product:3"} {
			if !yield(id, nil) {
				return
			}
		}
	}
	if err := exists.Rebuild(ctx, products); err != nil {
		panic(err)
	}
	fmt.Println(exists.MayContain(ctx, "product:1"), exists.MayContain(ctx, "product:7"))

	// A new row: first the filter, then the commit.
	if err := exists.Add(ctx, "product:7"); err != nil {
		panic(err)
	}
	fmt.Println(exists.MayContain(ctx, "product:7"))
	// Output:
	// true
	// true false
	// true
}

// connect starts a Redis in this process. A program has its own.
func connect() (rdb *redis.Client, end func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		server.Close()
	}
}

// What one process adds, the others know.
func ExampleOpen() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	o := bloom.Options{
		Name: "product", Capacity: 1_000_000,
		Complete: true, // nothing exists yet: no Rebuild is needed
	}
	here, err := bloom.Open(ctx, rdb, o)
	if err != nil {
		panic(err)
	}
	defer here.Close()
	there, err := bloom.Open(ctx, rdb, o) // in another process
	if err != nil {
		panic(err)
	}
	defer there.Close()

	if err := here.Add(ctx, "product:7"); err != nil {
		panic(err)
	}
	fmt.Println(here.MayContain(ctx, "product:7"))
	time.Sleep(time.Second) // MaxLag
	fmt.Println(there.MayContain(ctx, "product:7"))
	// Output:
	// true
	// true
}

// A counting filter forgets what is deleted.
func ExampleFilter_Remove() {
	ctx := context.Background()
	exists, err := bloom.New(bloom.Options{Capacity: 1_000_000, Counting: true, Complete: true})
	if err != nil {
		panic(err)
	}
	defer exists.Close()
	_ = exists.Add(ctx, "product:7")
	fmt.Println(exists.MayContain(ctx, "product:7"))
	_ = exists.Remove(ctx, "product:7") // when the deletion of its row has committed
	fmt.Println(exists.MayContain(ctx, "product:7"))
	// Output:
	// true
	// false
}

// A Rebuild that fails changes nothing. In a service it runs when NeedsRebuild says so, and
// now and then for what was deleted.
func ExampleFilter_Rebuild() {
	ctx := context.Background()
	exists, err := bloom.New(bloom.Options{Capacity: 1_000_000, MaxTransaction: -1})
	if err != nil {
		panic(err)
	}
	defer exists.Close()
	fmt.Println(exists.Stats().NeedsRebuild)

	scan := func(ids []string, broken error) func(yield func(string, error) bool) {
		return func(yield func(string, error) bool) {
			for _, id := range ids {
				if !yield(id, nil) {
					return
				}
			}
			if broken != nil {
				yield("", broken) // a scan that broke off must not look like the whole
			}
		}
	}
	fmt.Println(exists.Rebuild(ctx, scan([]string{"product:1", "product:2"}, nil)))
	fmt.Println(exists.Rebuild(ctx, scan([]string{"product:1"}, errors.New("connection reset"))))
	fmt.Println(exists.MayContain(ctx, "product:2"), exists.Stats().NeedsRebuild)
	// Output:
	// true
	// <nil>
	// bloom: Rebuild after 1 ids: connection reset
	// true false
}

// A writer that does not know whether a row is new.
func ExampleFilter_Ensure() {
	ctx := context.Background()
	exists, err := bloom.New(bloom.Options{Capacity: 1_000_000, Complete: true})
	if err != nil {
		panic(err)
	}
	defer exists.Close()
	for range 2 { // INSERT … ON CONFLICT DO UPDATE
		if err := exists.Ensure(ctx, "product:7"); err != nil {
			panic(err)
		}
	}
	fmt.Println(exists.MayContain(ctx, "product:7"))
	// Output: true
}
