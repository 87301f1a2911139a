package cacheprom_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/levee-go/levee/cache/cacheprom"
	"github.com/levee-go/levee/internal/redistest"
)

// withFewer returns the scrape of a registry before and after Fewer.
func withFewer(t *testing.T, registry *prometheus.Registry) (before, after map[string]*dto.MetricFamily) {
	t.Helper()
	before = gather(t, registry)
	check(t, cacheprom.Fewer(registry))
	return before, gather(t, registry)
}

// What is left out is asked for by nobody, and of a histogram sum and count stay as they were.
func TestFewerSeriesHaveAllThatAlertsAndPanelsAskFor(t *testing.T) {
	before, after := withFewer(t, registerEverything(t))
	for name, family := range before {
		asked := strings.Contains(cacheprom.Alerts, name) || strings.Contains(cacheprom.Dashboard, name)
		if asked != (after[name] != nil) {
			t.Errorf("%s: asked for %v, exported %v", name, asked, after[name] != nil)
		}
		if family.GetType() != dto.MetricType_HISTOGRAM {
			continue
		}
		long, short := family.GetMetric()[0].GetHistogram(), after[name].GetMetric()[0].GetSummary()
		if short.GetSampleCount() != long.GetSampleCount() || short.GetSampleSum() != long.GetSampleSum() || len(short.GetQuantile()) > 0 {
			t.Errorf("%s is %v in place of %v", name, short, long)
		}
	}
	for _, rule := range rules(t) {
		if strings.Contains(rule.Expr, "_bucket") {
			t.Errorf("%s asks for buckets", rule.Alert)
		}
	}
	all, _ := panels(t)
	for _, p := range all {
		if len(p.Targets) > 0 && !slices.ContainsFunc(p.Targets, func(target query) bool { return !strings.Contains(target.Expr, "_bucket") }) {
			t.Errorf("the panel %q stays empty", p.Title)
		}
	}
}

// docs/monitoring.md says how many series there are with and without.
func TestFewerSeriesAreCounted(t *testing.T) {
	s := newService(t)
	for i := range 3 {
		_, _ = s.products.Get(t.Context(), fmt.Sprint(i%2))
	}
	check(t, s.exists.Add(t.Context(), "1"))
	_, _ = s.products.Get(t.Context(), "1")
	before, after := withFewer(t, s.registry)
	own, c := prometheus.NewPedanticRegistry(), newCache(t, "alone", nil)
	check(t, cacheprom.Register(own, c))
	_, _ = c.Get(t.Context(), "a")
	_, alone := withFewer(t, own)
	_, everythingAfter := withFewer(t, registerEverything(t))
	count := func(families map[string]*dto.MetricFamily) int {
		return series(families, "levee_cache") + series(families, "levee_breaker") - series(families, "levee_cache_filter")
	}
	if now, then := count(after), count(before); now >= then*2/3 {
		t.Errorf("%d of %d series are left", now, then)
	}
	page := string(redistest.Must(os.ReadFile("../../docs/monitoring.md")))
	for what, n := range map[string]int{
		"a cache without Redis, and its breaker": series(alone, ""),
		"a cache with a Redis, and its breaker":  count(after), "its filter": series(after, "levee_filter") + series(after, "levee_cache_filter"),
		"a Locker": series(after, "levee_lock"), "all that there is, with a feed, an Audit, a Shadow, a Ledger and every histogram": series(everythingAfter, ""),
	} {
		if row := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %s \| \d+ \| %d \|$`, what, n)); !row.MatchString(page) {
			t.Errorf("docs/monitoring.md lacks the row %s", row)
		}
	}
}
