package cache_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
)

// A handler gives each error of Get a status of its own.
func ExampleCache_Get() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{42: "lamp"}}
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product"})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()

	status := func(id int64) int {
		_, err := products.Get(ctx, id)
		switch {
		case err == nil:
			return 200
		case errors.Is(err, cache.ErrNotFound):
			return 404
		case errors.Is(err, cache.ErrOverloaded): // the database was not asked, to spare it
			return 503
		}
		return 500 // the loader's error, or the end of ctx; never one of Redis
	}
	fmt.Println(status(42))
	fmt.Println(status(404))
	// Output:
	//   the database is asked for 42
	// 200
	// 404
}

// A writer that has the new value at hand spares the next reader the load.
func ExampleCache_Set() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{42: "lamp"}}
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product"})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()

	if err := store.Rename(ctx, 42, "desk lamp"); err != nil { // first the database
		log.Fatal(err)
	}
	fmt.Println(products.Set(ctx, 42, Product{42, "desk lamp"}))
	p, err := products.Get(ctx, 42)
	fmt.Println(p.Name, err)
	// Output:
	// <nil>
	// desk lamp <nil>
}

// After an import by somebody who tells no cache.
func ExampleCache_Clear() {
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
	_, _ = products.Get(ctx, 2)

	_ = store.Rename(ctx, 1, "floor lamp")
	_ = store.Rename(ctx, 2, "standing desk")
	fmt.Println(products.Clear(ctx)) // one command, however many values there are
	p, err := products.Get(ctx, 2)
	fmt.Println(p.Name, err)
	// Output:
	//   the database is asked for 1
	//   the database is asked for 2
	// <nil>
	//   the database is asked for 2
	// standing desk <nil>
}

// A service asks once when it starts, logs what is wrong, and goes on: without Redis its
// source answers.
func ExampleCache_Check() {
	ctx := context.Background()
	wrong := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1, MaxRetries: -1}) // nobody listens there
	defer wrong.Close()
	redis.SetLogger(silence{})
	store := &shop{rows: map[int64]string{42: "lamp"}}
	products, err := cache.New(wrong, store.Product, cache.Options{Name: "product", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()

	err = products.Check(ctx)
	fmt.Println(errors.Is(err, cache.ErrUnavailable))
	p, err := products.Get(ctx, 42)
	fmt.Println(p.Name, err)
	// Output:
	// true
	//   the database is asked for 42
	// lamp <nil>
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// Hooks are for what Stats does not count: here each slow load, by its key.
func ExampleHooks() {
	ctx := context.Background()
	hooks := cache.Hooks{Load: func(ctx context.Context, op cache.Op) (context.Context, func(cache.Outcome)) {
		began := time.Now()
		return ctx, func(o cache.Outcome) {
			if took := time.Since(began); took > 5*time.Millisecond {
				fmt.Println("slow:", op.Cache, op.Key, o.Err)
			}
		}
	}}
	load := func(_ context.Context, id int64) (string, error) {
		if id == 42 {
			time.Sleep(10 * time.Millisecond)
		}
		return "product " + strconv.FormatInt(id, 10), nil
	}
	products, err := cache.New(nil, load, cache.Options{Name: "product", Hooks: hooks})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()
	_, _ = products.Get(ctx, 42)
	_, _ = products.Get(ctx, 42) // from the process: no hook
	// Output: slow: product 42 <nil>
}

// The share of reads that asked the database, for a metric of one's own.
func ExampleCache_Stats() {
	ctx := context.Background()
	load := func(_ context.Context, id int64) (string, error) { return "product " + strconv.FormatInt(id, 10), nil }
	products, err := cache.New(nil, load, cache.Options{Name: "product"})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()
	for range 100 {
		_, _ = products.Get(ctx, 42)
	}
	s := products.Stats()
	fmt.Printf("%d%% of %d\n", 100*s.Loads/s.Gets, s.Gets)
	// Output: 1% of 100
}
