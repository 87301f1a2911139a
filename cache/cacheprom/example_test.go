package cacheprom_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheprom"
	"github.com/levee-go/levee/lock"
)

// docs/monitoring.md, Prometheus.
func _(products *cache.Cache[int64, string], bySlug *cache.Cache[string, int64], locker *lock.Locker) error {
	if err := cacheprom.Register(prometheus.DefaultRegisterer, products, bySlug); err != nil { // with their breakers and filters
		return err
	}
	if err := cacheprom.RegisterLocker(prometheus.DefaultRegisterer, "orders", locker); err != nil {
		return err
	}
	http.Handle("/metrics", promhttp.Handler()) // on a port that only operators reach
	return nil
}

// docs/monitoring.md, A cache for each tenant.
func _(ofTenant *cache.Cache[int64, string]) error {
	if err := cacheprom.RegisterSum(prometheus.DefaultRegisterer, "tenants", ofTenant); err != nil { // as often as there are tenants
		return err
	}
	return nil
}

// Registered with prometheus.DefaultRegisterer, the metrics stand in the registry that
// promhttp.Handler serves.
func ExampleRegister() {
	load := func(_ context.Context, id int64) (string, error) { return fmt.Sprint("product ", id), nil }
	products, err := cache.New(nil, load, cache.Options{Name: "product"}) // nil: without Redis
	if err != nil {
		panic(err)
	}
	defer products.Close()

	registry := prometheus.NewRegistry()
	if err := cacheprom.Register(registry, products); err != nil {
		panic(err)
	}

	for range 10 {
		_, _ = products.Get(context.Background(), 42)
	}

	printScrape(registry, "levee_cache_loads_total", `levee_cache_gets_total{cache="product",outcome="lo`, "levee_breaker_state")
	// Output:
	// levee_breaker_state{name="product"} 0
	// levee_cache_gets_total{cache="product",outcome="loaded"} 1
	// levee_cache_gets_total{cache="product",outcome="local"} 9
	// levee_cache_loads_total{cache="product"} 1
}

// A cache for each tenant is scraped as one of them all.
func ExampleRegisterSum() {
	registry := prometheus.NewRegistry()
	for _, tenant := range []string{"acme", "globex", "initech"} {
		load := func(_ context.Context, id int64) (string, error) { return fmt.Sprint("product ", id), nil }
		products, err := cache.New(nil, load, cache.Options{Name: "product-" + tenant})
		if err != nil {
			panic(err)
		}
		defer products.Close() // after cacheprom.Unregister, if other tenants stay
		if err := cacheprom.RegisterSum(registry, "product", products); err != nil {
			panic(err)
		}
		_, _ = products.Get(context.Background(), 42)
	}
	printScrape(registry, "levee_cache_loads_total")
	// Output:
	// levee_cache_loads_total{cache="product"} 3
}

// The breaker of a cache comes with the cache. This one has none.
func ExampleRegisterBreaker() {
	db, err := breaker.New(breaker.Options{Name: "catalog", MaxConcurrent: 16})
	if err != nil {
		panic(err)
	}
	registry := prometheus.NewRegistry()
	if err := cacheprom.RegisterBreaker(registry, db); err != nil {
		panic(err)
	}

	_ = db.Do(context.Background(), func(context.Context) error { return nil })
	_ = db.Do(context.Background(), func(context.Context) error { return errors.New("no route to host") })

	printScrape(registry, "levee_breaker_state", `levee_breaker_calls_total{name="catalog",outcome="success"}`, `levee_breaker_calls_total{name="catalog",outcome="failure"}`)
	// Output:
	// levee_breaker_calls_total{name="catalog",outcome="failure"} 1
	// levee_breaker_calls_total{name="catalog",outcome="success"} 1
	// levee_breaker_state{name="catalog"} 0
}

// The filter of a cache comes with the cache. This one has none.
func ExampleRegisterFilter() {
	exists, err := bloom.New(bloom.Options{Name: "product", Capacity: 1000})
	if err != nil {
		panic(err)
	}
	defer exists.Close()
	registry := prometheus.NewRegistry()
	if err := cacheprom.RegisterFilter(registry, exists); err != nil {
		panic(err)
	}

	printScrape(registry, "levee_filter_abstaining", "levee_filter_capacity")
	ids := func(yield func(string, error) bool) { yield("42", nil) } // of the database
	if err := exists.Rebuild(context.Background(), ids); err != nil {
		panic(err)
	}
	printScrape(registry, "levee_filter_abstaining", "levee_filter_ids")
	// Output:
	// levee_filter_abstaining{name="product"} 1
	// levee_filter_capacity{name="product"} 1000
	// levee_filter_abstaining{name="product"} 0
	// levee_filter_ids{name="product"} 1
}

func ExampleRegisterLocker() {
	server, err := miniredis.Run() // a Redis for the example
	if err != nil {
		panic(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	locker, err := lock.New(rdb, lock.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	registry := prometheus.NewRegistry()
	if err := cacheprom.RegisterLocker(registry, "orders", locker); err != nil {
		panic(err)
	}

	lease, err := locker.Lock(context.Background(), "order:7")
	if err != nil {
		panic(err)
	}
	printScrape(registry, "levee_lock_held", `levee_lock_calls_total{name="orders",outcome="acquired"}`)
	_ = lease.Unlock(context.Background())
	printScrape(registry, "levee_lock_held")
	// Output:
	// levee_lock_calls_total{name="orders",outcome="acquired"} 1
	// levee_lock_held{name="orders"} 1
	// levee_lock_held{name="orders"} 0
}

// printScrape prints the lines of a scrape that begin in one of these ways.
func printScrape(registry *prometheus.Registry, begins ...string) {
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if slices.ContainsFunc(begins, func(begin string) bool { return strings.HasPrefix(line, begin) }) {
			fmt.Print(line)
		}
	}
}
