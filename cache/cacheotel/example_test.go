package cacheotel_test

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheotel"
)

// docs/metrics.md, OpenTelemetry.
func _(rdb redis.UniversalClient, load cache.Loader[int64, string]) error {
	products, err := cache.New(rdb, load, cache.Options{Name: "product", Hooks: cacheotel.Hooks(otel.GetTracerProvider())})
	if err != nil {
		return err
	}
	metrics, err := cacheotel.Cache(otel.GetMeterProvider(), "product", products) // also Breaker, Filter and Locker
	if err != nil {
		return err
	}
	defer metrics.Unregister()
	return nil
}

func Example() {
	// A program takes otel.GetTracerProvider() and otel.GetMeterProvider().
	spans := tracetest.NewInMemoryExporter()
	traces := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	meters := sdkmetric.NewMeterProvider()

	load := func(_ context.Context, id int64) (string, error) { return fmt.Sprint("product ", id), nil }
	products, err := cache.New(nil, load, cache.Options{ // nil: without Redis
		Name:  "product",
		Hooks: cacheotel.Hooks(traces),
	})
	if err != nil {
		panic(err)
	}
	defer products.Close()
	metrics, err := cacheotel.Cache(meters, "product", products)
	if err != nil {
		panic(err)
	}
	defer metrics.Unregister()

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
