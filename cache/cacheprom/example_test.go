package cacheprom_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheprom"
	"github.com/levee-go/levee/lock"
)

// docs/metrics.md, Prometheus.
func _(products *cache.Cache[int64, string], db *breaker.Breaker, exists *bloom.Filter, locker *lock.Locker) {
	prometheus.MustRegister(
		cacheprom.Cache("product", products),
		cacheprom.Breaker("catalog", db), // shared by caches: once
		cacheprom.Filter("product", exists),
		cacheprom.Locker("orders", locker),
	)
	http.Handle("/metrics", promhttp.Handler())
}

func Example() {
	load := func(_ context.Context, id int64) (string, error) { return fmt.Sprint("product ", id), nil }
	products, err := cache.New(nil, load, cache.Options{Name: "product"}) // nil: without Redis
	if err != nil {
		panic(err)
	}
	defer products.Close()

	registry := prometheus.NewRegistry() // or prometheus.MustRegister, for the default one
	registry.MustRegister(cacheprom.Cache("product", products))
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))

	for range 10 {
		_, _ = products.Get(context.Background(), 42)
	}

	scrape := httptest.NewServer(http.DefaultServeMux)
	defer scrape.Close()
	response, err := http.Get(scrape.URL + "/metrics")
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "levee_cache_loads_total") || strings.Contains(line, `outcome="local"`) {
			fmt.Print(line)
		}
	}
	// Output:
	// levee_cache_gets_total{cache="product",outcome="local"} 9
	// levee_cache_loads_total{cache="product"} 1
}
