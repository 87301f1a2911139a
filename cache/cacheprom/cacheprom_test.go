package cacheprom_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v2"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheadmin"
	"github.com/levee-go/levee/cache/cacheprom"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

func TestMain(m *testing.M) { redistest.Main(m, nil) }

// A service is one of each of levee's things, on a real Redis, and an endpoint that
// Prometheus could scrape.
type service struct {
	t        testing.TB
	server   *redistest.Server
	products *cache.Cache[string, string]
	db       *breaker.Breaker
	exists   *bloom.Filter
	locker   *lock.Locker
	registry *prometheus.Registry
	url      string
}

func newService(t testing.TB) *service {
	s := &service{t: t, server: redistest.Start(t)}
	rdb := s.server.Client(t)
	s.db = redistest.Must(breaker.New(breaker.Options{Name: "catalog"}))
	s.exists = redistest.Must(bloom.Open(t.Context(), rdb, bloom.Options{Name: "product", Capacity: 1000, Complete: true}))
	redistest.Eventually(t, time.Minute, "the filter answers", func() bool { return !s.exists.Stats().Abstaining })
	s.products = redistest.Must(cache.New(rdb, func(_ context.Context, key string) (string, error) {
		if strings.HasPrefix(key, "absent") {
			return "", cache.ErrNotFound
		}
		return "lamp", nil
	}, cache.Options{Name: "product", Breaker: s.db, Filter: s.exists, RedisTimeout: 5 * time.Second}))
	s.locker = redistest.Must(lock.New(rdb, lock.Options{}))
	t.Cleanup(func() {
		_, _, _ = s.products.Close(), s.exists.Close(), s.locker.Close()
	})
	s.registry = prometheus.NewPedanticRegistry() // which checks what collectors say of themselves
	check(t, cacheprom.Register(s.registry, s.products))
	check(t, cacheprom.RegisterLocker(s.registry, "orders", s.locker))
	endpoint := httptest.NewServer(promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	t.Cleanup(endpoint.Close)
	s.url = endpoint.URL
	return s
}

// scrape asks the endpoint, as Prometheus does.
func (s *service) scrape() (text string, families map[string]*dto.MetricFamily) {
	s.t.Helper()
	response := redistest.Must(http.Get(s.url))
	defer response.Body.Close()
	text = string(redistest.Must(io.ReadAll(response.Body)))
	if response.StatusCode != http.StatusOK {
		s.t.Fatal(response.Status, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return text, redistest.Must(parser.TextToMetricFamilies(strings.NewReader(text)))
}

// value is that of a metric without the label outcome, or with this one.
func value(families map[string]*dto.MetricFamily, name, outcome string) float64 {
	for _, m := range families[name].GetMetric() {
		if labels(m)["outcome"] == outcome {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return -1
}

func labels(m *dto.Metric) map[string]string {
	all := map[string]string{}
	for _, l := range m.GetLabel() {
		all[l.GetName()] = l.GetValue()
	}
	return all
}

func TestAScrapeSaysWhatTheStatisticsSay(t *testing.T) {
	s := newService(t)
	ctx := t.Context()
	if err := s.exists.Add(ctx, "secret-7", "secret-8", "absent-9"); err != nil {
		t.Error(err)
	}
	for range 3 {
		for _, key := range []string{"secret-7", "secret-8", "absent-9"} {
			_, _ = s.products.Get(ctx, key)
		}
	}
	lease := redistest.Must(s.locker.Lock(ctx, "secret-order"))
	text, families := s.scrape()
	stats := s.products.Stats()
	if stats.Loads < 3 || stats.Local == 0 {
		t.Fatalf("too little has happened: %+v", stats)
	}
	for _, c := range []struct {
		name, outcome string
		want          float64
	}{
		{"levee_cache_gets_total", "local", float64(stats.Local)},
		{"levee_cache_gets_total", "null", float64(stats.Null)},
		{"levee_cache_gets_total", "loaded", float64(stats.Loaded)},
		{"levee_cache_loads_total", "", float64(stats.Loads)},
		{"levee_cache_load_seconds", "", float64(stats.Loads)},
		{"levee_cache_redis_read_seconds", "", float64(stats.RedisRead.Count())},
		{"levee_cache_outage", "", 0},
		{"levee_breaker_calls_total", "success", float64(stats.Loads)},
		{"levee_breaker_state", "", 0},
		{"levee_filter_adds_total", "", 3},
		{"levee_filter_abstaining", "", 0},
		{"levee_lock_held", "", 1},
		{"levee_lock_calls_total", "acquired", 1},
	} {
		if got := value(families, c.name, c.outcome); got != c.want {
			t.Errorf("%s{%s} is %v, want %v", c.name, c.outcome, got, c.want)
		}
	}
	var sum float64
	for _, m := range families["levee_cache_gets_total"].GetMetric() {
		sum += m.GetCounter().GetValue()
	}
	if sum != 9 {
		t.Errorf("9 Gets are scraped as %v", sum)
	}
	if strings.Contains(text, "secret") || strings.Contains(text, "absent-9") {
		t.Errorf("the scrape tells a key:\n%s", text)
	}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			for label := range labels(m) {
				if !slices.Contains([]string{"cache", "name", "outcome", "after"}, label) {
					t.Errorf("%s has the label %s", name, label)
				}
			}
		}
	}
	if err := lease.Unlock(ctx); err != nil {
		t.Error(err)
	}
	if _, families = s.scrape(); value(families, "levee_lock_held", "") != 0 {
		t.Error("a lock that was given back is held in the next scrape")
	}
}

// Prometheus' histograms are cumulative, ours are not.
func TestTheBucketsOfAHistogramAddUp(t *testing.T) {
	h := cache.Histogram{
		Bounds: []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond},
		Counts: []uint64{2, 2, 2, 1}, Sum: 3 * time.Second,
	}
	registry := prometheus.NewPedanticRegistry()
	check(t, cacheprom.Register(registry, &statistics{name: "x", stats: cache.Stats{LoadTime: h}}))
	for _, family := range redistest.Must(registry.Gather()) {
		if family.GetName() != "levee_cache_load_seconds" {
			continue
		}
		got := family.GetMetric()[0].GetHistogram()
		third := got.GetBucket()[2]
		if third.GetCumulativeCount() != 6 || third.GetUpperBound() != 0.003 || got.GetSampleSum() != 3 || got.GetSampleCount() != h.Count() {
			t.Errorf("%v", got)
		}
		return
	}
	t.Error("there is no such histogram")
}

// A panel or an alert on a metric that does not exist is silent for ever.
func TestTheDashboardAsksForMetricsThatExist(t *testing.T) {
	families := everything(t)
	var dashboard struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	if err := json.Unmarshal([]byte(cacheprom.Dashboard), &dashboard); err != nil {
		t.Fatal(err)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("%q has the id of another panel", p.Title)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%q asks for nothing", p.Title)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[at] != "" || at[0] >= 24 {
					t.Errorf("%q does not fit beside %q", p.Title, taken[at])
				}
				taken[at] = p.Title
			}
		}
		for _, target := range p.Targets {
			exists(t, families, target.Expr)
		}
	}
	for _, variable := range dashboard.Templating.List {
		if variable.Definition != "" {
			exists(t, families, variable.Definition)
		}
	}
	for name := range families {
		if !strings.Contains(cacheprom.Dashboard, name) && !slices.Contains(notOnTheDashboard, name) {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}

// notOnTheDashboard are metrics of little use over time.
var notOnTheDashboard = []string{
	"levee_cache_cleared_total", "levee_cache_local_flushes_total", "levee_cache_outages_total", "levee_breaker_service_seconds",
	"levee_breaker_timeouts_total", "levee_breaker_shed_total", "levee_filter_complete", "levee_filter_saturated",
	"levee_filter_rebuilding", "levee_filter_needs_rebuild", "levee_filter_fill", "levee_filter_bytes", "levee_filter_adds_total", "levee_filter_removes_total",
	"levee_filter_rebuilds_total", "levee_filter_downloads_total", "levee_lock_messages_live",
}

// A rule is an alert.
type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// rules reads the alerts.
func rules(t *testing.T) []rule {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	if err := yaml.UnmarshalStrict([]byte(cacheprom.Alerts), &file); err != nil {
		t.Fatal(err)
	}
	return file.Groups[0].Rules
}

func TestEachAlertAsksForMetricsThatExistAndSaysWhatToDo(t *testing.T) {
	families := everything(t)
	names := map[string]bool{}
	for _, rule := range rules(t) {
		if names[rule.Alert] {
			t.Errorf("%s is there twice", rule.Alert)
		}
		names[rule.Alert] = true
		exists(t, families, rule.Expr)
		if severity := rule.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s has the severity %q", rule.Alert, severity)
		}
		if len(rule.Annotations["summary"]) < 20 || len(rule.Annotations["runbook"]) < 60 {
			t.Errorf("%s does not say what to do: %q", rule.Alert, rule.Annotations)
		}
		if _, err := model.ParseDuration(rule.For); rule.For != "" && err != nil {
			t.Errorf("%s: %v", rule.Alert, err)
		}
		for alert := range strings.FieldsFuncSeq(rule.Annotations["runbook"], func(r rune) bool { return r < 'A' || r > 'z' }) {
			if strings.HasPrefix(alert, "Levee") && !strings.Contains(cacheprom.Alerts, "alert: "+alert) {
				t.Errorf("%s refers to %s, which is not there", rule.Alert, alert)
			}
		}
		exists(t, families, rule.Annotations["runbook"])
	}
	if len(names) < 10 {
		t.Errorf("%d alerts", len(names))
	}
}

var (
	selector = regexp.MustCompile(`\b(levee_\w+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(=~|=)\s*"([^"]*)"`)
)

// exists fails the test if an expression asks for a metric or for an outcome that was not
// scraped.
func exists(t *testing.T, families map[string]*dto.MetricFamily, expr string) {
	t.Helper()
	for _, found := range selector.FindAllStringSubmatch(expr, -1) {
		name := found[1]
		if families[name] == nil {
			name = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"), "_sum")
		}
		family := families[name]
		if family == nil || name != found[1] && family.GetType() != dto.MetricType_HISTOGRAM {
			t.Errorf("%s does not exist: %s", found[1], expr)
			continue
		}
		for _, match := range matcher.FindAllStringSubmatch(found[2], -1) {
			if strings.HasPrefix(match[3], "$") { // a variable of the dashboard
				continue
			}
			for wanted := range strings.SplitSeq(match[3], "|") {
				if !slices.ContainsFunc(family.GetMetric(), func(m *dto.Metric) bool { return labels(m)[match[1]] == wanted }) {
					t.Errorf("%s with %s=%q does not exist: %s", name, match[1], wanted, expr)
				}
			}
		}
	}
}

// docs/reference/stats.md has a line for each metric and for no other. That it stands beside the right field is tested with the list of metrics.
func TestEachMetricIsDocumented(t *testing.T) {
	families := everything(t)
	page := string(redistest.Must(os.ReadFile("../../docs/reference/stats.md")))
	for _, name := range slices.Sorted(maps.Keys(families)) {
		for _, m := range families[name].GetMetric() {
			cell := "| `" + name + "`"
			if outcome := labels(m)["outcome"] + labels(m)["after"]; outcome != "" {
				cell += " `" + outcome + "`"
			}
			if n := strings.Count(page, cell+" |"); n != 1 {
				t.Errorf("docs/reference/stats.md has %d lines for %s", n, cell)
			}
		}
	}
	exists(t, families, page)
	exists(t, families, string(redistest.Must(os.ReadFile("../../docs/monitoring.md"))))
}

// docs/reference/alerts.md has each alert, in the words of the file.
func TestEachAlertIsDocumented(t *testing.T) {
	page := string(redistest.Must(os.ReadFile("../../docs/reference/alerts.md")))
	for _, rule := range rules(t) {
		said := regexp.MustCompile("{{[^}]*}}").ReplaceAllString(rule.Annotations["summary"], "…")
		if line := "| `" + rule.Alert + "` | " + rule.Labels["severity"] + " | " + said + " | " + rule.Annotations["runbook"] + " |\n"; !strings.Contains(page, line) {
			t.Errorf("docs/reference/alerts.md lacks the line\n%s", line)
		}
	}
	if n := strings.Count(page, "\n| `Levee"); n != len(rules(t)) {
		t.Errorf("docs/reference/alerts.md has %d alerts, the file %d", n, len(rules(t)))
	}
}

// At three in the morning a runbook that names what nobody can call is none: the verbs are those of cacheadmin, the commands
// those of a server, and each alert has one of them, or a statement of the database.
func TestEachRunbookNamesAVerbOrACommandThatExists(t *testing.T) {
	s := newService(t)
	admin := redistest.Must(cacheadmin.New(cacheadmin.Options{
		Caches: []cacheadmin.Cache{s.products}, Logger: slog.New(slog.DiscardHandler),
		Allow: func(*http.Request, string, string) (string, error) { return "", errors.New("not done") }, // comes after the look at the verb
	}))
	isVerb := func(name string) bool {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("cache=product&do="+name))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		admin.ServeHTTP(w, r)
		return w.Code == http.StatusForbidden
	}
	if isVerb("drop") || !isVerb("clear") {
		t.Fatal("the look at a verb does not tell which are there")
	}
	commands := redistest.Must(s.server.Client(t).Command(t.Context()).Result())
	for _, rule := range rules(t) {
		runbook := rule.Annotations["runbook"]
		verbs, calls := verbOf.FindAllStringSubmatch(runbook, -1), callOf.FindAllStringSubmatch(runbook, -1)
		for _, verb := range verbs {
			if !isVerb(verb[1]) {
				t.Errorf("%s: cacheadmin has no verb %s", rule.Alert, verb[1])
			}
		}
		for _, call := range calls {
			if commands[strings.ToLower(call[1])] == nil {
				t.Errorf("%s: Redis has no command %s", rule.Alert, call[1])
			}
		}
		if len(verbs)+len(calls) == 0 && !statement.MatchString(runbook) {
			t.Errorf("%s names neither a verb nor a command: %s", rule.Alert, runbook)
		}
	}
}

var (
	verbOf    = regexp.MustCompile(`\bdo=(\w+)`)
	callOf    = regexp.MustCompile(`\bredis-cli ([A-Z]+)`)
	statement = regexp.MustCompile(`\b(SELECT \* FROM pg_\w+|SHOW [A-Z ]+)`)
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
