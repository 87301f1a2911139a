package cachetest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cachetest"
)

// A Product is a row.
type Product struct {
	Name  string
	Cents int
}

// A Catalog is the code under test: a service that has a cache.
type Catalog struct {
	products *cache.Cache[int64, Product]
	rows     *cachetest.Store[int64, Product] // its database
}

// Rename gives a product another name.
func (c *Catalog) Rename(ctx context.Context, id int64, name string) error {
	return c.products.Write(ctx, []int64{id}, func(context.Context) error {
		return c.rows.Update(id, func(p *Product) { p.Name = name })
	})
}

// Here newTest stands for the t of your test.
func ExampleNew() {
	t := newTest()
	defer t.end()

	var rows cachetest.Store[int64, Product]
	rows.Put(1, Product{"lamp", 500})
	products := cachetest.New(t, nil, rows.Load, cache.Options{TTL: 10 * time.Minute})
	catalog := &Catalog{products, &rows}

	for range 100 {
		_, _ = products.Get(t.Context(), 1)
	}
	fmt.Println(rows.Loads(1), "load")

	err := catalog.Rename(t.Context(), 1, "desk")
	p, _ := products.Get(t.Context(), 1)
	fmt.Println(p.Name, err)
	// Output:
	// 1 load
	// desk <nil>
}

// An int in an any comes back from JSON as a float64: in a test at once, in production when
// another process reads the value.
func ExampleNew_codec() {
	t := newTest()
	defer t.end()

	load := func(context.Context, string) (map[string]any, error) {
		return map[string]any{"limit": 10}, nil
	}
	settings := cachetest.New(t, nil, load, cache.Options{})
	s, err := settings.Get(t.Context(), "settings")
	fmt.Printf("%T %v\n", s["limit"], err)
	// Output: float64 <nil>
}

// Two caches over one Redis are two processes of a service. This Redis is in the test itself.
func ExampleNew_twoProcesses() {
	server, err := miniredis.Run() // in a test: miniredis.RunT(t)
	if err != nil {
		panic(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	t := newTest()
	defer t.end() // the caches end before their client

	var rows cachetest.Store[int64, Product]
	rows.Put(1, Product{"lamp", 500})
	o := cache.Options{Name: "product"}
	one := cachetest.New(t, rdb, rows.Load, o)
	two := cachetest.New(t, rdb, rows.Load, o)

	_, _ = one.Get(t.Context(), 1)
	p, _ := two.Fetch(t.Context(), 1)
	fmt.Println(p.Value.Name, "from", p.Tier, "after", rows.Loads(1), "load")
	// Output: lamp from redis after 1 load
}

func ExampleNewFrom() {
	t := newTest()
	defer t.end()

	var rows cachetest.Store[int64, Product]
	rows.Put(1, Product{"lamp", 500})
	rows.Put(2, Product{"desk", 9000})
	products := cachetest.NewFrom(t, nil, cache.Source[int64, Product]{
		LoadMany: rows.LoadMany,
		Tags:     func(int64, Product) []string { return []string{"furniture"} },
	}, cache.Options{})

	found, err := products.GetMany(t.Context(), []int64{1, 2, 3})
	fmt.Println(len(found), err)
	// Output: 2 <nil>
}

func ExampleInvalidated() {
	t := newTest()
	defer t.end()

	var rows cachetest.Store[int64, Product]
	rows.Put(1, Product{"lamp", 500})
	rows.Put(2, Product{"desk", 9000})
	products := cachetest.New(t, nil, rows.Load, cache.Options{})
	catalog := &Catalog{products, &rows}

	fmt.Println(cachetest.Invalidated(t, products, []int64{1, 2}, func() {
		_ = catalog.Rename(t.Context(), 2, "table")
	}))
	// Output: [2]
}

func ExampleStore() {
	t := newTest()
	defer t.end()

	var rows cachetest.Store[int64, Product]
	rows.Put(1, Product{"lamp", 500})
	products := cachetest.New(t, nil, rows.Load, cache.Options{})

	p, err := products.Get(t.Context(), 1)
	fmt.Println(p.Name, err)
	_, err = products.Get(t.Context(), 404)
	fmt.Println(errors.Is(err, cache.ErrNotFound))
	// Output:
	// lamp <nil>
	// true
}

// A row that another program changes does not reach the cache, as in production.
func ExampleStore_Put() {
	t := newTest()
	defer t.end()

	var rows cachetest.Store[int64, Product]
	products := cachetest.New(t, nil, rows.Load, cache.Options{})
	_, before := products.Get(t.Context(), 1)
	rows.Put(1, Product{"lamp", 500})
	_, after := products.Get(t.Context(), 1) // its absence is cached
	fmt.Println(errors.Is(before, cache.ErrNotFound), errors.Is(after, cache.ErrNotFound))
	// Output: true true
}

func ExampleStore_Delete() {
	t := newTest()
	defer t.end()

	var rows cachetest.Store[int64, Product]
	rows.Put(1, Product{"lamp", 500})
	products := cachetest.New(t, nil, rows.Load, cache.Options{})
	err := products.Write(t.Context(), []int64{1}, func(context.Context) error {
		rows.Delete(1)
		return nil
	})
	fmt.Println(err)
	_, err = products.Get(t.Context(), 1)
	fmt.Println(errors.Is(err, cache.ErrNotFound))
	// Output:
	// <nil>
	// true
}

// Update is for the writes of the code under test.
func ExampleStore_Update() {
	var rows cachetest.Store[int64, Product]
	rows.Put(1, Product{"lamp", 500})
	cheaper := func(p *Product) { p.Cents /= 2 }

	err := rows.Update(1, cheaper)
	p, _ := rows.Load(context.Background(), 1)
	fmt.Println(p.Cents, err)
	fmt.Println(rows.Update(2, cheaper))
	// Output:
	// 250 <nil>
	// cache: not found
}

func ExampleStore_Load() {
	var rows cachetest.Store[int64, Product]
	rows.Put(1, Product{"lamp", 500})
	var load cache.Loader[int64, Product] = rows.Load

	p, err := load(context.Background(), 1)
	fmt.Println(p.Name, err)
	// Output: lamp <nil>
}

func ExampleStore_LoadMany() {
	var rows cachetest.Store[int64, Product]
	rows.Put(1, Product{"lamp", 500})
	var load cache.BatchLoader[int64, Product] = rows.LoadMany

	found, err := load(context.Background(), []int64{1, 2})
	fmt.Println(found, err)
	// Output: map[1:{lamp 500}] <nil>
}

// An absent key is loaded once, as one that exists: its absence is cached too.
func ExampleStore_Loads() {
	t := newTest()
	defer t.end()

	var rows cachetest.Store[int64, Product]
	products := cachetest.New(t, nil, rows.Load, cache.Options{})
	for range 100 {
		_, _ = products.Get(t.Context(), 404)
	}
	fmt.Println(rows.Loads(404), rows.Loads(1))
	// Output: 1 0
}

// While the database fails, values that are cached are served.
func ExampleStore_Fail() {
	t := newTest()
	defer t.end()

	var rows cachetest.Store[int64, Product]
	rows.Put(1, Product{"lamp", 500})
	products := cachetest.New(t, nil, rows.Load, cache.Options{})
	_, _ = products.Get(t.Context(), 1)

	rows.Fail(errors.New("connection refused"))
	p, err := products.Get(t.Context(), 1)
	fmt.Println(p.Name, err)
	_, err = products.Get(t.Context(), 2)
	fmt.Println(err)
	// Output:
	// lamp <nil>
	// connection refused
}
