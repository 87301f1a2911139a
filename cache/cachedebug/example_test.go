package cachedebug_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cachedebug"
	"github.com/levee-go/levee/localcache"
)

// The page is mounted on a mux of its own, for a port that only operators reach.
func Example() {
	log := cachedebug.NewLog(slog.Default().Handler(), 100)
	load := func(_ context.Context, id int64) (string, error) { return fmt.Sprint("product ", id), nil }
	products, err := cache.New(nil, load, cache.Options{
		Name: "product", Logger: slog.New(log), Local: localcache.Options{HotKeys: 100},
	})
	if err != nil {
		panic(err)
	}
	defer products.Close()

	debug := http.NewServeMux()
	debug.Handle("/debug/levee", cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{products}, Log: log}))
	server := httptest.NewServer(debug) // http.ListenAndServe("localhost:6060", debug)
	defer server.Close()

	_, _ = products.Get(context.Background(), 42)
	response, err := http.Get(server.URL + "/debug/levee?cache=product&key=42")
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	page, _ := io.ReadAll(response.Body)
	fmt.Println(strings.Contains(string(page), "1 Gets, 1 loads"), strings.Contains(string(page), "fresh"))
	// Output: true true
}

// Where does a key stand? Inspect changes nothing and loads nothing.
func ExampleInspect() {
	ctx := context.Background()
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	load := func(_ context.Context, id int64) (string, error) { return fmt.Sprint("product ", id), nil }
	products, err := cache.New(rdb, load, cache.Options{Name: "product"})
	if err != nil {
		panic(err)
	}
	defer products.Close()
	_, _ = products.Get(ctx, 42)

	found, err := cachedebug.Inspect(ctx, products, "42")
	if err != nil {
		panic(err)
	}
	fmt.Println(found.RedisKey, found.Redis.State, found.Leased)
	// Output: levee:c1:{product:42} fresh false
}
