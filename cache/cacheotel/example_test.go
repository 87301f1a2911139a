package cacheotel_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheotel"
	"github.com/levee-go/levee/lock"
)

// docs/monitoring.md, OpenTelemetry.
func _(rdb redis.UniversalClient, load cache.Loader[int64, string]) error {
	products, err := cache.New(rdb, load, cache.Options{Name: "product", Hooks: cacheotel.Hooks(otel.GetTracerProvider())})
	if err != nil {
		return err
	}
	metrics, err := cacheotel.Register(otel.GetMeterProvider(), products) // and other caches, each with its breaker and filter
	if err != nil {
		return err
	}
	defer metrics.Unregister()
	return nil
}

// docs/monitoring.md, OpenTelemetry.
func _(exporter sdkmetric.Exporter, products *cache.Cache[int64, string]) {
	var histograms cacheotel.Histograms
	reader := sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithProducer(&histograms)) // of go.opentelemetry.io/otel/sdk/metric
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	histograms.Add(products) // levee.cache.load is a histogram then; always cumulative
}

func ExampleHistograms() {
	var histograms cacheotel.Histograms
	reader := sdkmetric.NewManualReader(sdkmetric.WithProducer(&histograms)) // NewPeriodicReader in a program
	defer reader.Shutdown(context.Background())
	_ = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))

	load := func(_ context.Context, id int64) (string, error) { return fmt.Sprint("product ", id), nil }
	products, err := cache.New(nil, load, cache.Options{Name: "product"})
	if err != nil {
		panic(err)
	}
	defer products.Close()
	histograms.Add(products)

	_, _ = products.Get(context.Background(), 42)
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		panic(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		fmt.Println(m.Name, m.Unit, m.Data.(metricdata.Histogram[float64]).DataPoints[0].Count)
	}
	// Output: levee.cache.load s 1
}

// Spans are made beneath those of the service, and none for a hit in the process.
func ExampleHooks() {
	spans := tracetest.NewInMemoryExporter()
	traces := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)) // otel.GetTracerProvider() in a program

	load := func(_ context.Context, id int64) (string, error) { return fmt.Sprint("product ", id), nil }
	products, err := cache.New(nil, load, cache.Options{Name: "product", Hooks: cacheotel.Hooks(traces)}) // nil: without Redis
	if err != nil {
		panic(err)
	}
	defer products.Close()

	ctx, request := traces.Tracer("shop").Start(context.Background(), "GET /product/42")
	_, _ = products.Get(ctx, 42)
	_, _ = products.Get(ctx, 42) // from the process: no span
	request.End()

	for _, span := range spans.GetSpans() {
		fmt.Println(span.Name)
	}
	// Output:
	// cache.load
	// cache.rebuild
	// GET /product/42
}

func ExampleRegister() {
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)) // otel.GetMeterProvider() in a program

	load := func(_ context.Context, id int64) (string, error) { return fmt.Sprint("product ", id), nil }
	products, err := cache.New(nil, load, cache.Options{Name: "product"})
	if err != nil {
		panic(err)
	}
	defer products.Close()
	metrics, err := cacheotel.Register(meters, products)
	if err != nil {
		panic(err)
	}
	defer metrics.Unregister()

	for range 10 {
		_, _ = products.Get(context.Background(), 42)
	}
	printMetrics(reader, "levee.cache.gets", "levee.cache.loads")
	// Output:
	// levee.cache.gets levee.cache=product,levee.outcome=loaded 1
	// levee.cache.gets levee.cache=product,levee.outcome=local 9
	// levee.cache.loads levee.cache=product 1
}

// The breaker of a cache comes with the cache. This one has none.
func ExampleRegisterBreaker() {
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	db, err := breaker.New(breaker.Options{Name: "catalog", MaxConcurrent: 16})
	if err != nil {
		panic(err)
	}
	metrics, err := cacheotel.RegisterBreaker(meters, db)
	if err != nil {
		panic(err)
	}
	defer metrics.Unregister()

	_ = db.Do(context.Background(), func(context.Context) error { return nil })
	printMetrics(reader, "levee.breaker.calls", "levee.breaker.state")
	// Output:
	// levee.breaker.calls levee.name=catalog,levee.outcome=success 1
}

// The filter of a cache comes with the cache. This one has none.
func ExampleRegisterFilter() {
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	exists, err := bloom.New(bloom.Options{Name: "product", Capacity: 1000})
	if err != nil {
		panic(err)
	}
	defer exists.Close()
	metrics, err := cacheotel.RegisterFilter(meters, exists)
	if err != nil {
		panic(err)
	}
	defer metrics.Unregister()

	printMetrics(reader, "levee.filter.abstaining", "levee.filter.capacity") // until its first Rebuild
	// Output:
	// levee.filter.abstaining levee.name=product 1
	// levee.filter.capacity levee.name=product 1000
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
	reader := sdkmetric.NewManualReader()
	metrics, err := cacheotel.RegisterLocker(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), "orders", locker)
	if err != nil {
		panic(err)
	}
	defer metrics.Unregister()

	lease, err := locker.Lock(context.Background(), "order:7")
	if err != nil {
		panic(err)
	}
	defer lease.Unlock(context.Background())
	printMetrics(reader, "levee.lock.held")
	// Output:
	// levee.lock.held levee.name=orders 1
}

// printMetrics prints the values of these metrics that are not 0, with their attributes.
func printMetrics(reader *sdkmetric.ManualReader, names ...string) {
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		panic(err)
	}
	var lines []string
	add := func(name string, points []metricdata.DataPoint[float64]) {
		for _, p := range points {
			if p.Value != 0 {
				lines = append(lines, fmt.Sprintln(name, p.Attributes.Encoded(attribute.DefaultEncoder()), p.Value))
			}
		}
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if !slices.Contains(names, m.Name) {
			continue
		}
		switch data := m.Data.(type) {
		case metricdata.Sum[float64]:
			add(m.Name, data.DataPoints)
		case metricdata.Gauge[float64]:
			add(m.Name, data.DataPoints)
		}
	}
	slices.Sort(lines)
	fmt.Print(strings.Join(lines, ""))
}
