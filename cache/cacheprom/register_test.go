package cacheprom_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheprom"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// statistics stands for a cache where its numbers are the test's.
type statistics struct {
	name   string
	stats  cache.Stats
	own    *breaker.Breaker
	filter cache.Filter
}

func (s *statistics) Name() string         { return s.name }
func (s *statistics) Stats() cache.Stats   { return s.stats }
func (s *statistics) Inside() inside.Cache { return inside.Cache{Breaker: s.own, Filter: s.filter} }

// everything is a scrape with all metrics in it.
func everything(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	return gather(t, registerEverything(t))
}

func registerEverything(t *testing.T) *prometheus.Registry {
	t.Helper()
	all := &statistics{
		name: "all", own: redistest.Must(breaker.New(breaker.Options{})), filter: redistest.Must(bloom.New(bloom.Options{Capacity: 10})),
		stats: newCache(t, "all", nil).Stats(),
	}
	fill(reflect.ValueOf(&all.stats).Elem())
	all.stats.Rebuild.InProcess = false
	registry := prometheus.NewPedanticRegistry()
	check(t, cacheprom.Register(registry, all))
	locker := redistest.Must(lock.New(redistest.Start(t).Client(t), lock.Options{Logger: slog.New(slog.DiscardHandler)}))
	t.Cleanup(func() { _ = locker.Close() })
	check(t, cacheprom.RegisterLocker(registry, "all", locker))
	return registry
}

// fill makes each number of a struct 1, but for what is in times.
func fill(v reflect.Value) {
	if _, ok := v.Addr().Interface().(*time.Time); ok {
		return
	}
	if h, ok := v.Addr().Interface().(*cache.Histogram); ok {
		h.Bounds, h.Counts = make([]time.Duration, 17), make([]uint64, 18) // as a cache has
		for i := range h.Bounds {
			h.Bounds[i], h.Counts[i] = time.Duration(i)*time.Second, 1
		}
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(1)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	}
}

func gather(t *testing.T, registry *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	gathered, err := registry.Gather()
	check(t, err)
	families := map[string]*dto.MetricFamily{}
	for _, family := range gathered {
		families[family.GetName()] = family
	}
	return families
}

// of is the value of a metric with these values of cache or name, and of outcome; NaN if it
// is not there.
func of(families map[string]*dto.MetricFamily, metric, name, outcome string) float64 {
	for _, m := range families[metric].GetMetric() {
		if l := labels(m); l["cache"]+l["name"] == name && l["outcome"] == outcome {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return math.NaN()
}

// series is how many lines a scrape has of metrics that begin so, without lines that explain.
func series(families map[string]*dto.MetricFamily, begin string) (n int) {
	for name, family := range families {
		if !strings.HasPrefix(name, begin) {
			continue
		}
		for _, m := range family.GetMetric() {
			if h := m.GetHistogram(); h != nil {
				n += len(h.GetBucket()) + 2 // +Inf is not among them; sum and count
			}
			if m.GetSummary() != nil {
				n++ // sum and count
			}
			n++
		}
	}
	return n
}

func newCache(t testing.TB, name string, change func(*cache.Options)) *cache.Cache[string, string] {
	o := cache.Options{Name: name}
	if change != nil {
		change(&o)
	}
	c := redistest.Must(cache.New(nil, func(_ context.Context, key string) (string, error) {
		if key == "fails" {
			return "", errors.New("no route to host")
		}
		return "lamp", nil
	}, o))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A cache whose breaker nobody has made by hand is the usual one. Its breaker was in no metric,
// and two alerts could never fire.
func TestACachesOwnBreakerIsScraped(t *testing.T) {
	c, registry := newCache(t, "product", nil), prometheus.NewPedanticRegistry()
	check(t, cacheprom.Register(registry, c))
	for range 30 {
		_, _ = c.Get(t.Context(), "fails")
		time.Sleep(time.Millisecond)
	}
	_, _ = c.Get(t.Context(), "a")
	families := gather(t, registry)
	if got := of(families, "levee_breaker_state", "product", ""); got != float64(c.Stats().Breaker.State) {
		t.Errorf("the state of the breaker is %v", got)
	}
	if got := of(families, "levee_breaker_calls_total", "product", "failure"); got < 1 || got != float64(c.Stats().Breaker.Failures) {
		t.Errorf("the breaker has %v failures, of %+v", got, c.Stats().Breaker)
	}
}

// A breaker that two caches share was scraped twice, if it was registered with each.
func TestABreakerThatCachesShareIsScrapedOnce(t *testing.T) {
	shared, nameless := redistest.Must(breaker.New(breaker.Options{Name: "catalog"})), redistest.Must(breaker.New(breaker.Options{}))
	registry := prometheus.NewPedanticRegistry()
	a := newCache(t, "a", func(o *cache.Options) { o.Breaker = shared })
	b := newCache(t, "b", func(o *cache.Options) { o.Breaker = shared })
	check(t, cacheprom.Register(registry, a))
	check(t, cacheprom.Register(registry, b, a)) // a for the second time
	check(t, cacheprom.RegisterBreaker(registry, shared))
	for _, name := range []string{"c", "d"} {
		check(t, cacheprom.Register(registry, newCache(t, name, func(o *cache.Options) { o.Breaker = nameless })))
	}
	for _, c := range []*cache.Cache[string, string]{a, b} {
		_, _ = c.Get(t.Context(), "x")
	}
	families := gather(t, registry)
	if n := len(families["levee_breaker_state"].GetMetric()); n != 2 {
		t.Errorf("two breakers are scraped as %d: %v", n, families["levee_breaker_state"])
	}
	if got := of(families, "levee_breaker_calls_total", "catalog", "success"); got != 2 {
		t.Errorf("two loads are scraped as %v", got)
	}
	if got := of(families, "levee_breaker_state", "c", ""); got != 0 {
		t.Errorf("a breaker without a name has not that of its first cache: %v", got)
	}
	if err := cacheprom.RegisterBreaker(registry, nameless); err == nil {
		t.Error("a breaker without a name is registered")
	}
}

// A cache for each of 300 tenants made 52,500 series.
func TestManyCachesAreScrapedAsOne(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	shared := redistest.Must(breaker.New(breaker.Options{Name: "catalog"}))
	var tenants []cacheprom.Cache
	for i := range 40 {
		c := newCache(t, fmt.Sprint("tenant-", i), func(o *cache.Options) {
			o.Local.MaxBytes = 1 << 20
			if i%2 == 0 {
				o.Breaker = shared
			}
		})
		tenants = append(tenants, c)
		_, _ = c.Get(t.Context(), "a")
		check(t, cacheprom.RegisterSum(registry, "tenants", c))
	}
	families := gather(t, registry)
	if got := of(families, "levee_cache_loads_total", "tenants", ""); got != 40 {
		t.Errorf("40 loads are scraped as %v", got)
	}
	if got := of(families, "levee_cache_load_seconds", "tenants", ""); got != 40 {
		t.Errorf("the histogram has %v of 40 loads", got)
	}
	if got := of(families, "levee_breaker_calls_total", "tenants", "success"); got != 20 {
		t.Errorf("the caches' own breakers had 20 calls, and say %v", got)
	}
	if got := of(families, "levee_breaker_calls_total", "catalog", "success"); got != 20 {
		t.Errorf("the shared breaker had 20 calls, and says %v", got)
	}
	if n := series(families, ""); n > 150 {
		t.Errorf("40 caches are %d series", n)
	}

	// The sum keeps the counters of a tenant that is removed, and does not add them twice if it returns.
	cacheprom.Unregister(registry, tenants[:30]...)
	families = gather(t, registry)
	if got := of(families, "levee_cache_loads_total", "tenants", ""); got != 40 {
		t.Errorf("without 30 of them, 40 loads are scraped as %v", got)
	}
	if got := of(families, "levee_breaker_calls_total", "tenants", "success"); got != 20 {
		t.Errorf("without 30 of them, 20 calls are %v", got)
	}
	if after := of(families, "levee_cache_local_bytes", "tenants", ""); after <= 0 || after > 40_000 {
		t.Errorf("the local tiers are %v bytes", after)
	}
	cacheprom.Unregister(registry, tenants...)
	if got := of(gather(t, registry), "levee_cache_loads_total", "tenants", ""); got != 40 {
		t.Errorf("without all of them, 40 loads are scraped as %v", got)
	}
}

func TestOfManyCachesTheWorstIsSaid(t *testing.T) {
	well, ill := cache.Stats{Live: true}, cache.Stats{}
	ill.Rebuild.Outage, ill.Rebuild.Unconfirmed, ill.Follow.Lag = true, 3, time.Minute
	registry := prometheus.NewPedanticRegistry()
	check(t, cacheprom.RegisterSum(registry, "all", &statistics{name: "a", stats: well}, &statistics{name: "b", stats: ill}, &statistics{name: "c", stats: well}))
	families := gather(t, registry)
	for metric, want := range map[string]float64{
		"levee_cache_messages_live": 0, "levee_cache_outage": 1, "levee_cache_invalidations_pending": 3, "levee_cache_feed_lag_seconds": 60,
	} {
		if got := of(families, metric, "all", ""); got != want {
			t.Errorf("%s is %v, want %v", metric, got, want)
		}
	}
}

func TestACacheCanBeUnregistered(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	a, b := newCache(t, "a", nil), newCache(t, "b", nil)
	check(t, cacheprom.Register(prometheus.WrapRegistererWith(prometheus.Labels{"team": "shop"}, registry), a))
	check(t, cacheprom.Register(prometheus.WrapRegistererWith(prometheus.Labels{"team": "shop"}, registry), b))
	cacheprom.Unregister(prometheus.WrapRegistererWith(prometheus.Labels{"team": "shop"}, registry), a)
	families := gather(t, registry)
	if got := of(families, "levee_cache_loads_total", "a", ""); !math.IsNaN(got) {
		t.Errorf("an unregistered cache has %v loads", got)
	}
	if got := of(families, "levee_breaker_state", "a", ""); !math.IsNaN(got) {
		t.Errorf("the breaker of an unregistered cache has the state %v", got)
	}
	if got := of(families, "levee_cache_loads_total", "b", ""); got != 0 {
		t.Errorf("the other cache has %v loads", got)
	}
}

// A scrape of five caches had 918 lines, most of them of histograms without a value and of
// feeds, audits and filters that nobody had.
func TestWhatACacheDoesNotUseIsAbsent(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	c := newCache(t, "alone", nil)
	check(t, cacheprom.Register(registry, c))
	for range 3 {
		_, _ = c.Get(t.Context(), "a")
	}
	families := gather(t, registry)
	for _, absent := range []string{
		"levee_cache_outage", "levee_cache_messages_live", "levee_cache_redis_read_seconds", "levee_cache_filter_wrong_total",
		"levee_cache_feed_wanted", "levee_cache_feed_lost_total", "levee_cache_audit_total", "levee_cache_audit_stale_age_seconds", "levee_audit_looked_total",
		"levee_cache_stale_age_seconds", "levee_filter_ids",
	} {
		if families[absent] != nil {
			t.Errorf("%s of a cache without Redis, filter, feed and audit is scraped", absent)
		}
	}
	alone := series(families, "")

	s := newService(t)
	for i := range 3 {
		_, _ = s.products.Get(t.Context(), fmt.Sprint(i%2))
	}
	check(t, s.exists.Add(t.Context(), "1"))
	_, _ = s.products.Get(t.Context(), "1")
	_, families = s.scrape()
	for metric, name := range map[string]string{"levee_cache_outage": "product", "levee_filter_ids": "product", "levee_cache_filter_wrong_total": "product"} {
		if math.IsNaN(of(families, metric, name, "")) {
			t.Errorf("%s of a cache with a Redis and a filter is absent", metric)
		}
	}
	ofFilter := series(families, "levee_filter") + series(families, "levee_cache_filter")
	withRedis := series(families, "levee_cache") + series(families, "levee_breaker") - series(families, "levee_cache_filter")
	page := string(redistest.Must(os.ReadFile("../../docs/monitoring.md")))
	for what, n := range map[string]int{
		"a cache without Redis, and its breaker": alone, "a cache with a Redis, and its breaker": withRedis, "its filter": ofFilter,
		"a Locker": series(families, "levee_lock"), "all that there is, with a feed, an Audit, a Shadow, a Ledger and every histogram": series(everything(t), ""),
	} {
		if line := fmt.Sprintf("| %s | %d |", what, n); !strings.Contains(page, line) {
			t.Errorf("docs/monitoring.md lacks the line\n%s", line)
		}
	}
}
