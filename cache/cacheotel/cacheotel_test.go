package cacheotel_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheotel"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/lock"
)

func TestMain(m *testing.M) { redistest.Main(m, nil) }

// A rig is a Redis and a tracer whose spans are kept.
type rig struct {
	*testing.T
	server   *redistest.Server
	exporter *tracetest.InMemoryExporter
	provider *sdktrace.TracerProvider
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, server: redistest.Start(t), exporter: tracetest.NewInMemoryExporter()}
	r.provider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.exporter))
	t.Cleanup(func() { _ = r.provider.Shutdown(context.Background()) })
	return r
}

// open makes a cache without a local tier whose spans are kept.
func (r *rig) open(src cache.Source[string, string]) *cache.Cache[string, string] {
	c := redistest.Must(cache.NewFrom(r.server.Client(r), src, cache.Options{
		Name: "product", Local: localcache.Options{MaxBytes: -1}, RedisTimeout: 5 * time.Second,
		Hooks: cacheotel.Hooks(r.provider),
	}))
	r.Cleanup(func() { _ = c.Close() })
	return c
}

// within runs fn in a span, as a request would.
func (r *rig) within(name string, fn func(ctx context.Context)) {
	ctx, span := r.provider.Tracer("test").Start(r.Context(), name)
	defer span.End()
	fn(ctx)
}

// tree draws the spans that were kept, each with its parent, sorted.
func (r *rig) tree() (lines []string, spans map[string]tracetest.SpanStub) {
	spans, names := map[string]tracetest.SpanStub{}, map[trace.SpanID]string{}
	for _, s := range r.exporter.GetSpans() {
		names[s.SpanContext.SpanID()] = s.Name
		spans[s.Name] = s
	}
	for _, s := range r.exporter.GetSpans() {
		line := s.Name
		if s.Parent.IsValid() {
			line = names[s.Parent.SpanID()] + " > " + line
		}
		for _, link := range s.Links {
			line += " -> " + names[link.SpanContext.SpanID()]
		}
		lines = append(lines, line)
		if text := fmt.Sprint(s.Attributes); strings.Contains(text, "secret") {
			r.Errorf("%s tells a key: %s", s.Name, text)
		}
	}
	slices.Sort(lines)
	return lines, spans
}

func (r *rig) want(lines ...string) map[string]tracetest.SpanStub {
	r.Helper()
	got, spans := r.tree()
	if slices.Sort(lines); !slices.Equal(got, lines) {
		r.Errorf("spans:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
	r.exporter.Reset()
	return spans
}

func TestTheSpansOfARead(t *testing.T) {
	r := newRig(t)
	failure := errors.New("no database\nat all")
	c := r.open(cache.Source[string, string]{Load: func(ctx context.Context, key string) (string, error) {
		_, query := r.provider.Tracer("test").Start(ctx, "SELECT")
		defer query.End()
		switch key {
		case "secret-absent":
			return "", cache.ErrNotFound
		case "secret-broken":
			return "", failure
		}
		return "lamp", nil
	}})
	miss := []string{"GET /", "GET / > cache.read", "GET / > cache.rebuild", "cache.rebuild > cache.load", "cache.load > SELECT"}
	get := func(key string) func(context.Context) {
		return func(ctx context.Context) { _, _ = c.Get(ctx, key) }
	}
	r.within("GET /", get("secret-7"))
	spans := r.want(miss...)
	read := attribute.NewSet(spans["cache.read"].Attributes...)
	for key, want := range map[attribute.Key]string{"levee.cache": "product", "db.system.name": "redis", "db.operation.name": "GETRANGE", "levee.hits": "0"} {
		if got, _ := read.Value(key); got.String() != want {
			t.Errorf("%s is %q, want %q", key, got.String(), want)
		}
	}
	r.within("GET /", get("secret-7"))
	if spans = r.want("GET /", "GET / > cache.read"); spans["cache.read"].SpanKind != trace.SpanKindClient {
		t.Errorf("%+v", spans["cache.read"])
	}
	r.within("GET /", get("secret-absent"))
	if spans = r.want(miss...); spans["cache.load"].Status.Code != codes.Unset {
		t.Errorf("a key that does not exist is the status %+v", spans["cache.load"].Status)
	}
	r.within("GET /", get("secret-broken"))
	spans = r.want(miss...)
	for _, name := range []string{"cache.load", "cache.rebuild"} {
		if s := spans[name].Status; s.Code != codes.Error || s.Description != "no database" {
			t.Errorf("the status of %s is %+v", name, s)
		}
	}
}

func TestWithoutARecordingSpanThereIsNone(t *testing.T) {
	r := newRig(t)
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	c := r.open(cache.Source[string, string]{Load: func(context.Context, string) (string, error) { return "lamp", nil }})
	unsampled, span := never.Tracer("test").Start(t.Context(), "GET /")
	defer span.End()
	for i, ctx := range []context.Context{t.Context(), unsampled} {
		_ = redistest.Must(c.Get(ctx, fmt.Sprint(i)))
	}
	r.want()
}

// A caller who waited finds the load that served it, which is in another trace.
func TestAWaitLinksToTheLoad(t *testing.T) {
	r := newRig(t)
	loading, finish := make(chan struct{}), make(chan struct{})
	c := r.open(cache.Source[string, string]{Load: func(context.Context, string) (string, error) {
		close(loading)
		<-finish
		return "lamp", nil
	}})
	var both sync.WaitGroup
	both.Go(func() { r.within("first", func(ctx context.Context) { _ = redistest.Must(c.Get(ctx, "secret-7")) }) })
	<-loading
	ctx, span := r.provider.Tracer("test").Start(t.Context(), "second")
	started := make(chan struct{})
	both.Go(func() {
		defer span.End()
		_ = redistest.Must(c.Get(startedTo{ctx, started}, "secret-7"))
	})
	<-started
	close(finish)
	both.Wait()
	spans := r.want("first", "first > cache.read", "first > cache.rebuild", "cache.rebuild > cache.load", "second", "second > cache.wait -> cache.load")
	if link := spans["cache.wait"].Links[0].SpanContext; !link.Equal(spans["cache.load"].SpanContext) ||
		link.TraceID() == spans["cache.wait"].SpanContext.TraceID() {
		t.Errorf("the link leads to %v, the load is %v", link, spans["cache.load"].SpanContext)
	}
}

// startedTo closes a channel when somebody comes to wait for the end of a context.
type startedTo struct {
	context.Context
	started chan struct{}
}

func (s startedTo) Done() <-chan struct{} {
	select {
	case <-s.started:
	default:
		close(s.started)
	}
	return s.Context.Done()
}

// Keys of a GetMany share one load, which is beneath the rebuild of the first.
func TestRebuildsLinkToALoadThatTheyShare(t *testing.T) {
	r := newRig(t)
	c := r.open(cache.Source[string, string]{LoadMany: func(_ context.Context, keys []string) (map[string]string, error) {
		values := map[string]string{}
		for _, key := range keys {
			values[key] = "lamp"
		}
		return values, nil
	}})
	r.within("GET /", func(ctx context.Context) {
		_ = redistest.Must(c.GetMany(ctx, []string{"secret-1", "secret-2", "secret-3"}))
	})
	spans := r.want("GET /", "GET / > cache.read", "GET / > cache.rebuild", "cache.rebuild > cache.load",
		"GET / > cache.rebuild -> cache.load", "GET / > cache.rebuild -> cache.load")
	if size := attribute.NewSet(spans["cache.load"].Attributes...); !size.HasValue("levee.keys") || size.HasValue("db.operation.batch.size") {
		t.Errorf("%v", spans["cache.load"].Attributes)
	}
}

func TestTheWaitForAnotherProcessIsASpan(t *testing.T) {
	r := newRig(t)
	loading, finish := make(chan struct{}), make(chan struct{})
	other := r.open(cache.Source[string, string]{Load: func(context.Context, string) (string, error) {
		close(loading)
		<-finish
		return "lamp", nil
	}})
	c := r.open(cache.Source[string, string]{Load: func(context.Context, string) (string, error) { return "", errors.New("loaded twice") }})
	var both sync.WaitGroup
	both.Go(func() { _ = redistest.Must(other.Get(t.Context(), "7")) })
	<-loading
	both.Go(func() { r.within("GET /", func(ctx context.Context) { _ = redistest.Must(c.Get(ctx, "7")) }) })
	redistest.Eventually(t, 20*time.Second, "it waits", func() bool { return c.Stats().Rebuild.Waits > 0 })
	close(finish)
	both.Wait()
	want := []string{"GET /", "GET / > cache.read", "GET / > cache.rebuild", "cache.rebuild > cache.lease_wait", "cache.rebuild > cache.read"}
	if got, _ := r.tree(); !slices.Equal(slices.Compact(got), want) { // on a slow machine it looks more than once
		t.Errorf("got %q, want %q", got, want)
	}
}

// A slow PUT showed its own span, and nothing of the hold, the transaction and the invalidation.
func TestTheSpansOfAWrite(t *testing.T) {
	r := newRig(t)
	c := r.open(cache.Source[string, string]{Load: func(context.Context, string) (string, error) { return "lamp", nil }})
	failure := errors.New("conflict")
	for _, err := range []error{nil, failure} {
		r.within("PUT /", func(ctx context.Context) {
			_ = c.Write(ctx, []string{"secret-7", "secret-8"}, func(ctx context.Context) error {
				_, update := r.provider.Tracer("test").Start(ctx, "UPDATE")
				defer update.End()
				return err
			})
		})
		spans := r.want("PUT /", "PUT / > cache.write", "cache.write > cache.hold", "cache.write > cache.tx", "cache.tx > UPDATE", "cache.write > cache.invalidate")
		for name, want := range map[string]bool{"cache.write": err != nil, "cache.tx": err != nil, "cache.hold": false, "cache.invalidate": false} {
			if s := spans[name].Status; (s.Code == codes.Error) != want {
				t.Errorf("the transaction returned %v, and the status of %s is %+v", err, name, s)
			}
		}
		attributes := attribute.NewSet(spans["cache.hold"].Attributes...)
		if keys, _ := attributes.Value("levee.keys"); keys.AsInt64() != 2 {
			t.Errorf("the hold has the attributes %v", spans["cache.hold"].Attributes)
		}
	}
	r.within("PUT /", func(ctx context.Context) {
		_, _, _ = c.Invalidate(ctx, "secret-7"), c.Set(ctx, "secret-7", "lamp"), c.Clear(ctx)
	})
	r.want("PUT /", "PUT / > cache.invalidate", "PUT / > cache.set", "PUT / > cache.clear")
}

// everything is a cache that uses all that a cache may do without.
type everything struct{ *cache.Cache[string, string] }

func (e everything) Stats() cache.Stats {
	s := e.Cache.Stats()
	s.Follow.Wanted, s.Audit.Compared, s.Shadow.Equal, s.Ledger.Old2s = true, 1, 1, 1
	for _, h := range []*cache.Histogram{&s.FlightWait, &s.LeaseWait, &s.WriteTime, &s.StaleAge, &s.Audit.StaleAge} {
		h.Counts[0]++
	}
	return s
}

// A breaker that caches share is collected once, and caches of a sum as one.
func TestManyCachesAreCollectedAsOne(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	shared := redistest.Must(breaker.New(breaker.Options{Name: "catalog"}))
	var tenants []cacheotel.Cache
	for i := range 5 {
		o := cache.Options{Name: fmt.Sprint("tenant-", i)}
		if i < 3 {
			o.Breaker = shared
		}
		c := redistest.Must(cache.New(nil, func(context.Context, string) (string, error) { return "lamp", nil }, o))
		defer c.Close()
		_ = redistest.Must(c.Get(t.Context(), "a"))
		tenants = append(tenants, c)
	}
	defer redistest.Must(cacheotel.RegisterSum(provider, "tenants", tenants...)).Unregister()
	got := collect(t, reader)
	for name, want := range map[string]float64{
		"levee.cache.loads tenants": 5, "levee.breaker.calls catalog success": 3, "levee.breaker.calls tenants success": 2,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	for series := range got {
		if strings.Contains(series, "tenant-") || strings.HasPrefix(series, "levee.cache.redis") || strings.Contains(series, "feed") {
			t.Errorf("%s is collected", series)
		}
	}
}

// Each metric of docs/reference/stats.md is collected here under its name, with the values of Stats.
func TestMetricsAreThoseOfTheStatistics(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	db := redistest.Must(breaker.New(breaker.Options{Name: "catalog"}))
	exists := redistest.Must(bloom.New(bloom.Options{Capacity: 100}))
	c := redistest.Must(cache.New(rdb, func(context.Context, string) (string, error) { return "lamp", nil },
		cache.Options{Name: "product", RedisTimeout: 5 * time.Second, Breaker: db, Filter: exists}))
	defer c.Close()
	locker := redistest.Must(lock.New(rdb, lock.Options{}))
	defer locker.Close()
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	all := []metric.Registration{
		redistest.Must(cacheotel.Register(provider, everything{c})), redistest.Must(cacheotel.RegisterLocker(provider, "orders", locker)),
	}
	for range 5 {
		_ = redistest.Must(c.Get(t.Context(), "secret-7"))
	}
	got := collect(t, reader)
	stats := c.Stats()
	for name, want := range map[string]float64{
		"levee.cache.loads product": 1, "levee.cache.load.count product": 1, "levee.cache.load.sum product": stats.LoadTime.Sum.Seconds(),
		"levee.cache.gets product loaded": 1, "levee.cache.gets product local": float64(stats.Local),
		"levee.cache.outage product": 0, "levee.breaker.calls catalog success": 1,
		"levee.filter.abstaining product": 1, "levee.lock.held orders": 0,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %v (%v), want %v", name, value, ok, want)
		}
	}
	page := string(redistest.Must(os.ReadFile("../../docs/reference/stats.md")))
	rows := regexp.MustCompile("(?m)^\\| `\\w+` \\| `levee_([a-z]+)_(\\w+)`").FindAllStringSubmatch(page, -1)
	documented := map[string]bool{}
	for _, row := range rows {
		name := strings.TrimSuffix(strings.TrimSuffix(row[2], "_total"), "_seconds")
		documented["levee."+row[1]+"."+name] = true
	}
	collected := map[string]bool{}
	for series := range got {
		name, _, _ := strings.Cut(series, " ")
		collected[strings.TrimSuffix(strings.TrimSuffix(name, ".count"), ".sum")] = true
		if strings.Contains(series, "secret") {
			t.Errorf("%s tells a key", series)
		}
	}
	for name := range documented {
		if !collected[name] {
			t.Errorf("%s is documented and not collected", name)
		}
	}
	for name := range collected {
		if !documented[name] {
			t.Errorf("%s is collected and not documented", name)
		}
	}
	for _, r := range all {
		if err := r.Unregister(); err != nil {
			t.Error(err)
		}
	}
	if got := collect(t, reader); len(got) > 0 {
		t.Errorf("%d values are collected of what is closed", len(got))
	}
}

// collect returns what a reader collects, by name and attributes.
func collect(t *testing.T, reader sdkmetric.Reader) map[string]float64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	add := func(name string, points []metricdata.DataPoint[float64]) {
		for _, p := range points {
			series := name
			for _, key := range []attribute.Key{"levee.cache", "levee.name", "levee.outcome", "levee.after"} {
				if v, ok := p.Attributes.Value(key); ok {
					series += " " + v.AsString()
				}
			}
			values[series] = p.Value
		}
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[float64]:
				if !d.IsMonotonic {
					t.Errorf("%s may fall", m.Name)
				}
				add(m.Name, d.DataPoints)
			case metricdata.Gauge[float64]:
				add(m.Name, d.DataPoints)
			default:
				t.Errorf("%s is a %T", m.Name, d)
			}
		}
	}
	return values
}
