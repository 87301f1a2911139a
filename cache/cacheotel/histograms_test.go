package cacheotel_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheotel"
	"github.com/levee-go/levee/internal/redistest"
)

// histograms are those that a reader of the SDK collects, by name and cache.
func histograms(t *testing.T, reader sdkmetric.Reader) map[string]metricdata.HistogramDataPoint[float64] {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	all := map[string]metricdata.HistogramDataPoint[float64]{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			h, ok := m.Data.(metricdata.Histogram[float64])
			if !ok {
				continue
			}
			if h.Temporality != metricdata.CumulativeTemporality || m.Unit != "s" || m.Description == "" || !strings.HasSuffix(scope.Scope.Name, "/cacheotel") {
				t.Errorf("%s of %s is %+v", m.Name, scope.Scope.Name, m)
			}
			for _, p := range h.DataPoints {
				of, _ := p.Attributes.Value("levee.cache")
				all[m.Name+" "+of.AsString()] = p
			}
		}
	}
	return all
}

// Users of OpenTelemetry had a count and a sum of each histogram, and so no percentile.
func TestAReaderCollectsTheHistograms(t *testing.T) {
	var producer cacheotel.Histograms
	reader := sdkmetric.NewManualReader(sdkmetric.WithProducer(&producer))
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	if got := histograms(t, reader); len(got) > 0 {
		t.Errorf("without caches it has %v", got)
	}
	c := redistest.Must(cache.New(redistest.Start(t).Client(t), func(context.Context, string) (string, error) { return "lamp", nil },
		cache.Options{Name: "product", RedisTimeout: 5 * time.Second}))
	defer c.Close()
	defer redistest.Must(cacheotel.Register(provider, c)).Unregister()
	producer.Add(c)
	producer.Add(c)
	for _, key := range []string{"a", "b", "c"} {
		_ = redistest.Must(c.Get(t.Context(), key))
	}
	got, stats := histograms(t, reader), c.Stats()
	for name, want := range map[string]cache.Histogram{"levee.cache.load product": stats.LoadTime, "levee.cache.redis_read product": stats.RedisRead} {
		p := got[name]
		if p.Count != want.Count() || p.Sum != want.Sum.Seconds() || !slices.Equal(p.BucketCounts, want.Counts) || p.Count < 3 {
			t.Errorf("%s is %+v, want %+v", name, p, want)
		}
		if len(p.Bounds) != len(want.Bounds) || p.Bounds[2] != want.Bounds[2].Seconds() || !p.StartTime.Before(p.Time) {
			t.Errorf("%s is %+v, want %+v", name, p, want)
		}
	}
	if _, there := got["levee.cache.stale_age product"]; there {
		t.Error("a histogram without values is collected")
	}
	producer.Remove(c)
	if got := histograms(t, reader); len(got) > 0 {
		t.Errorf("a cache that was removed has %v", got)
	}
}

func TestHistogramsOfASumAreAddedUp(t *testing.T) {
	var producer cacheotel.Histograms
	reader := sdkmetric.NewManualReader(sdkmetric.WithProducer(&producer))
	_ = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	var tenants []cacheotel.Cache
	for _, name := range []string{"tenant-1", "tenant-2", "tenant-3"} {
		c := redistest.Must(cache.New(nil, func(context.Context, string) (string, error) { return "lamp", nil }, cache.Options{Name: name}))
		defer c.Close()
		_ = redistest.Must(c.Get(t.Context(), "a"))
		tenants = append(tenants, c)
	}
	producer.AddSum("tenants", tenants...)
	if got := histograms(t, reader); len(got) != 1 || got["levee.cache.load tenants"].Count != 3 {
		t.Errorf("three loads are %v", got)
	}
	producer.Remove(tenants[0])
	if got := histograms(t, reader)["levee.cache.load tenants"].Count; got != 3 {
		t.Errorf("with one removed, three loads are %d: a counter must not fall", got)
	}
}
