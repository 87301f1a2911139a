package cache_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
)

// A Product is a row of the shop's table.
type Product struct {
	ID   int64
	Name string
}

// shop stands for a database.
type shop struct {
	mu   sync.Mutex
	rows map[int64]string
}

func (s *shop) Product(_ context.Context, id int64) (Product, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, ok := s.rows[id]
	if !ok {
		return Product{}, sql.ErrNoRows
	}
	fmt.Println("  the database is asked for", id)
	return Product{id, name}, nil
}

func (s *shop) Rename(_ context.Context, id int64, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[id] = name
	return nil
}

// Keys yields what a filter is built from.
func (s *shop) Keys(yield func(int64, error) bool) {
	s.mu.Lock()
	ids := slices.Collect(maps.Keys(s.rows))
	s.mu.Unlock()
	for _, id := range ids {
		if !yield(id, nil) {
			return
		}
	}
}

// connect starts a Redis in this process. A program has its own.
func connect() (rdb *redis.Client, end func()) {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		server.Close()
	}
}

func Example() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{42: "lamp"}}

	products, err := cache.New(rdb, store.Product, cache.Options{ // store.Product: func(ctx, int64) (Product, error)
		Name: "product",
		TTL:  10 * time.Minute,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()

	p, err := products.Get(ctx, 42) // errors.Is(err, cache.ErrNotFound)
	fmt.Println(p.Name, err)
	p, err = products.Get(ctx, 42)
	fmt.Println(p.Name, err)

	err = products.Write(ctx, []int64{42}, func(ctx context.Context) error { return store.Rename(ctx, 42, "new") })
	fmt.Println("renamed", err)
	p, err = products.Get(ctx, 42)
	fmt.Println(p.Name, err)

	_, err = products.Get(ctx, 404)
	fmt.Println(errors.Is(err, cache.ErrNotFound))
	// Output:
	//   the database is asked for 42
	// lamp <nil>
	// lamp <nil>
	// renamed <nil>
	//   the database is asked for 42
	// new <nil>
	// true
}

// Write invalidates also if the transaction reports an error, because it may have
// committed all the same.
func ExampleCache_Write() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{1: "lamp", 2: "desk"}}
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product"})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()
	_, _ = products.Get(ctx, 1)

	errTimeout := errors.New("no answer to COMMIT")
	err = products.Write(ctx, []int64{1, 2}, func(ctx context.Context) error {
		_ = store.Rename(ctx, 1, "floor lamp")
		_ = store.Rename(ctx, 2, "standing desk")
		return errTimeout
	})
	fmt.Println(errors.Is(err, errTimeout))
	p, _ := products.Get(ctx, 1)
	fmt.Println(p.Name)
	// Output:
	//   the database is asked for 1
	// true
	//   the database is asked for 1
	// floor lamp
}

// A filter answers for keys that cannot exist, without Redis or the database.
func ExampleCache_RebuildFilter() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{42: "lamp"}}

	exists, err := bloom.New(bloom.Options{Capacity: 100_000})
	if err != nil {
		log.Fatal(err)
	}
	defer exists.Close()
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product", Filter: exists})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()
	if err := products.RebuildFilter(ctx, store.Keys); err != nil { // until then it lets everything pass
		log.Fatal(err)
	}

	got, err := products.Fetch(ctx, 7)
	fmt.Println(got.Tier, err)

	// Write, Set and Announce tell the filter of new keys.
	err = products.Write(ctx, []int64{7}, func(ctx context.Context) error { return store.Rename(ctx, 7, "chair") })
	fmt.Println("written", err)
	got, err = products.Fetch(ctx, 7)
	fmt.Println(got.Value.Name, got.Tier, err)
	// Output:
	// filter cache: not found
	// written <nil>
	//   the database is asked for 7
	// chair source <nil>
}

// Caches of one database share a breaker, which bounds what it has to bear.
func Example_sharedBreaker() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()

	guard, err := breaker.New(breaker.Options{Name: "shop", MaxConcurrent: 32, MinRequests: 10, Timeout: 2 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	down := errors.New("connection refused")
	products, err := cache.New(rdb, func(context.Context, int64) (Product, error) { return Product{}, down },
		cache.Options{Name: "product", Breaker: guard})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()
	prices, err := cache.New(rdb, func(context.Context, int64) (int64, error) { return 0, down },
		cache.Options{Name: "price", Breaker: guard})
	if err != nil {
		log.Fatal(err)
	}
	defer prices.Close()

	for id := range int64(10) {
		_, err = products.Get(ctx, id)
	}
	fmt.Println(err)
	_, err = prices.Get(ctx, 1) // does not reach the database any more
	fmt.Println(err, errors.Is(err, cache.ErrOverloaded), errors.Is(err, breaker.ErrOpen))
	// Output:
	// connection refused
	// cache: overloaded: breaker: open true true
}

// A Source says more than New can be told: here how long each value lives. Its keys are
// structs, whose ids are like 42/7.
func ExampleNewFrom() {
	ctx := context.Background()
	type price struct{ Cents, Shop int }
	type at struct{ product, shop int }
	prices, err := cache.NewFrom(nil, cache.Source[at, price]{ // nil: without Redis, in this process only
		Load: func(_ context.Context, key at) (price, error) { return price{999, key.shop}, nil },
		TTL: func(_ at, p price) time.Duration {
			if p.Cents > 500 {
				return time.Minute
			}
			return 0 // Options.TTL
		},
	}, cache.Options{Name: "price"})
	if err != nil {
		log.Fatal(err)
	}
	defer prices.Close()
	p, err := prices.Get(ctx, at{product: 42, shop: 7})
	fmt.Println(p, err)
	// Output: {999 7} <nil>
}

// GetMany answers for the keys it can.
func ExampleCache_GetMany() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	down := errors.New("connection refused")
	names, err := cache.New(rdb, func(_ context.Context, id int64) (string, error) {
		switch id {
		case 1:
			return "lamp", nil
		case 2:
			return "", cache.ErrNotFound
		}
		return "", down
	}, cache.Options{Name: "name"})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	found, err := names.GetMany(ctx, []int64{1, 2, 3})
	fmt.Println(found)
	if failed := (*cache.BatchError[int64])(nil); errors.As(err, &failed) {
		fmt.Println(failed.Causes[3], errors.Is(err, down))
	}
	// Output:
	// map[1:lamp]
	// connection refused true
}

// Warm fills Redis before a new service, or one with an empty Redis, gets its readers.
func ExampleCache_Warm() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	names, err := cache.New(rdb, func(_ context.Context, id int64) (string, error) {
		return fmt.Sprint("product ", id), nil
	}, cache.Options{Name: "name", RedisTimeout: 10 * time.Second}) // a busy machine is no outage
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	bestsellers := func(yield func(int64) bool) { // such as the rows of a query, one by one
		for id := int64(1); id <= 1000 && yield(id); id++ {
		}
	}
	var done int
	err = names.Warm(ctx, bestsellers, cache.WarmOptions{
		Rate:     50_000, // keys a second; the default is 1,000
		Progress: func(now, _ int) { done = now },
	})
	fmt.Println(done, "done,", err)
	p, err := names.Fetch(ctx, 42)
	fmt.Println(p.Value, "from", p.Tier, err)
	// Output:
	// 1000 done, <nil>
	// product 42 from redis <nil>
}

// A new process warms Redis before it says that it is ready, for a bounded time.
func ExampleCache_Warm_ready() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	names, err := cache.New(rdb, func(_ context.Context, id int64) (string, error) {
		return fmt.Sprint("product ", id), nil
	}, cache.Options{Name: "name", RedisTimeout: 10 * time.Second}) // a busy machine is no outage
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()
	var ready atomic.Bool // what /readyz answers
	bestsellers := slices.Values([]int64{1, 2, 3})

	bounded, stop := context.WithTimeout(ctx, 30*time.Second) // ready then at the latest, whatever is warm
	defer stop()
	if err := names.Warm(bounded, bestsellers, cache.WarmOptions{Rate: 2000}); err != nil { // 60,000 keys in that time
		slog.Warn("some keys are cold: their first readers load them", "error", err)
	}
	ready.Store(true)
	fmt.Println(ready.Load())
	// Output: true
}

// Refresh replaces a value whose row was changed elsewhere, and nobody waits for the load.
func ExampleCache_Refresh() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	price := int64(100)
	prices, err := cache.New(rdb, func(context.Context, string) (int64, error) { return price, nil }, cache.Options{Name: "price"})
	if err != nil {
		log.Fatal(err)
	}
	defer prices.Close()

	before, err := prices.Get(ctx, "lamp")
	fmt.Println(before, err)
	price = 80 // by a batch job that knows nothing of the cache
	fmt.Println(prices.Refresh(ctx, "lamp"))
	after, err := prices.Get(ctx, "lamp")
	fmt.Println(after, err)
	// Output:
	// 100 <nil>
	// <nil>
	// 80 <nil>
}

// SetMany publishes values that the source already holds.
func ExampleCache_SetMany() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	stock, err := cache.New(rdb, func(context.Context, string) (int64, error) { return 0, nil }, cache.Options{Name: "stock"})
	if err != nil {
		log.Fatal(err)
	}
	defer stock.Close()

	fmt.Println(stock.SetMany(ctx, map[string]int64{"lamp": 3, "chair": 8}))
	values, err := stock.GetMany(ctx, []string{"lamp", "chair"})
	fmt.Println(values, err)
	// Output:
	// <nil>
	// map[chair:8 lamp:3] <nil>
}

// Fetch tells where a value came from, and whether it is past its TTL.
func ExampleCache_Fetch() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{42: "lamp"}}
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product"})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()
	got, err := products.Fetch(ctx, 42)
	fmt.Println(got.Value.Name, got.Tier, got.Stale, err)
	// Output:
	//   the database is asked for 42
	// lamp source false <nil>
}

// A writer that cannot run inside Write invalidates when it has committed.
func ExampleCache_Invalidate() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{42: "lamp"}}
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product"})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()
	_, _ = products.Get(ctx, 42)
	_ = store.Rename(ctx, 42, "floor lamp")
	if err := products.Invalidate(ctx, 42); errors.Is(err, cache.ErrNotInvalidated) { // an ended ctx is no error
		fmt.Println("Redis has not confirmed it; it is tried again in the background")
	}
	p, err := products.Get(ctx, 42)
	fmt.Println(p.Name, err)
	// Output:
	//   the database is asked for 42
	//   the database is asked for 42
	// floor lamp <nil>
}
