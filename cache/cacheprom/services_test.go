package cacheprom_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"

	"github.com/levee-go/levee/cache/cacheprom"
	"github.com/levee-go/levee/internal/dbtest"
	"github.com/levee-go/levee/internal/redistest"
)

// promtool runs one test of rules on the alerts. The test is in the form of promtool's unit tests.
func promtool(t *testing.T, test string) (string, error) {
	t.Helper()
	program, err := exec.LookPath("promtool")
	if err != nil {
		dbtest.Absent(t, "no promtool: it comes with Prometheus (.ci/install-prometheus installs it)")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"alerts.yml": cacheprom.Alerts, "test.yml": "rule_files: [alerts.yml]\nevaluation_interval: 30s\n" + test} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(program, "test", "rules", filepath.Join(dir, "test.yml")).CombinedOutput()
	return string(out), err
}

// Values of a series for an hour, every 30 s.
const (
	none    = "0x120"
	one     = "1x120"
	few     = "0+1x120"     // a counter that rises by one in each interval
	many    = "0+10000x120" // one that rises much faster
	atStart = "_x110 1x10"  // a counter that has counted before its first scrape
)

// A faulty is an alert, and two services that have the same names of caches, breakers, filters and lockers. The
// series are without their labels job, namespace, and cache or name. In ill is the fault. What others do must neither hide nor spread it.
type faulty struct {
	alert, label string
	ill, other   map[string]string
}

// pairs makes a map of keys and values by turns.
func pairs(of ...string) map[string]string {
	all := map[string]string{}
	for i := 0; i < len(of); i += 2 {
		all[of[i]] = of[i+1]
	}
	return all
}

// faults are one for each alert. Where an alert is a share, others have so much traffic that together the share is small; where it is
// silent during an outage, others have one; where it compares with a limit of the service itself, that of others is higher.
var faults = []faulty{
	{"LeveeGetsFail", "cache", pairs(`levee_cache_gets_total{outcome="error"}`, few), pairs(`levee_cache_gets_total{outcome="local"}`, many)},
	{"LeveeLoadsFail", "cache", pairs(`levee_cache_load_errors_total`, few, `levee_cache_loads_total`, few),
		pairs(`levee_cache_load_errors_total`, none, `levee_cache_loads_total`, many)},
	{"LeveeBreakerOpen", "name", pairs(`levee_breaker_state`, "2x120", `levee_breaker_calls_total{outcome="open"}`, few),
		pairs(`levee_breaker_state`, none, `levee_breaker_calls_total{outcome="open"}`, none)},
	{"LeveeLoadsStuck", "name", pairs(`levee_breaker_stuck`, "9x120"), pairs(`levee_breaker_stuck`, "7x120")},
	{"LeveeRedisOutage", "cache", pairs(`levee_cache_outage`, one), pairs(`levee_cache_outage`, none)},
	{"LeveeMessagesSilent", "cache", pairs(`levee_cache_messages_live`, none, `levee_cache_outage`, none),
		pairs(`levee_cache_messages_live`, one, `levee_cache_outage`, one)},
	{"LeveeInvalidationsPending", "cache", pairs(`levee_cache_invalidations_pending`, one), pairs(`levee_cache_invalidations_pending`, none)},
	{"LeveeWritesNotConfirmed", "cache", pairs(`levee_cache_not_invalidated_total`, few, `levee_cache_write_seconds_count`, few, `levee_cache_outage`, none),
		pairs(`levee_cache_not_invalidated_total`, none, `levee_cache_write_seconds_count`, many, `levee_cache_outage`, one)},
	event("LeveeInvalidationsDropped", "cache", `levee_cache_invalidations_unconfirmed_total{outcome="dropped"}`),
	{"LeveeInvalidationsDropped", "cache", pairs(`levee_cache_invalidations_pending`, "1x108 _x12"), pairs(`levee_cache_invalidations_pending`, one)}, // killed
	{"LeveeStaleAnswers", "cache", pairs(`levee_cache_fallbacks_total`, few, `levee_cache_gets_total{outcome="stale"}`, few),
		pairs(`levee_cache_fallbacks_total`, none, `levee_cache_gets_total{outcome="local"}`, many)},
	event("LeveeForeignKeys", "cache", `levee_cache_foreign_total`),
	event("LeveeOtherType", "cache", `levee_cache_other_type_total`),
	event("LeveeFilterWrong", "cache", `levee_cache_filter_wrong_total`),
	event("LeveeFeedLost", "cache", `levee_cache_feed_lost_total`),
	{"LeveeFeedBehind", "cache", pairs(`levee_cache_feed_lag_seconds`, "60x120"), pairs(`levee_cache_feed_lag_seconds`, none)},
	{"LeveeFeedSilent", "cache", pairs(`levee_cache_feed_wanted`, one, `levee_cache_feed_following`, none, `levee_cache_outage`, none),
		pairs(`levee_cache_feed_wanted`, one, `levee_cache_feed_following`, one, `levee_cache_outage`, one)},
	event("LeveeNobodyInvalidated", "cache", `levee_cache_audit_total{outcome="stale"}`),
	{"LeveeOldAfterChange", "cache", pairs(`levee_audit_old_total{after="2s"}`, few, `levee_audit_looked_total{after="2s"}`, few),
		pairs(`levee_audit_old_total{after="2s"}`, none, `levee_audit_looked_total{after="2s"}`, many)},
	{"LeveeUnfitValues", "cache", pairs(`levee_cache_unfit_total`, "0+60x120"), pairs(`levee_cache_unfit_total`, "0+20x120")},
	{"LeveeFilterAbstains", "name", pairs(`levee_filter_abstaining`, one), pairs(`levee_filter_abstaining`, none)},
	{"LeveeFilterFull", "name", pairs(`levee_filter_ids`, "200x120", `levee_filter_capacity`, "100x120"),
		pairs(`levee_filter_ids`, "500x120", `levee_filter_capacity`, "1000x120")},
	event("LeveeLockLost", "name", `levee_lock_losses_total`),
	{"LeveeRenewalsFail", "name", pairs(`levee_lock_renewals_total{outcome="failed"}`, few), pairs(`levee_lock_renewals_total{outcome="failed"}`, none)},
}

// event is an alert of what must never happen, which happened before the first scrape.
func event(alert, label, metric string) faulty {
	return faulty{alert, label, pairs(metric, atStart), pairs(metric, none)}
}

// labelled adds labels to a series.
func labelled(series, labels string) string {
	if name, own, ok := strings.Cut(series, "{"); ok {
		return name + "{" + labels + "," + own
	}
	return series + "{" + labels + "}"
}

// In one Prometheus are a shop, its staging environment, and a blog, all with a cache of one name. The alert fires
// for the one that has the fault, and for it alone. Catches an alert that adds services up, also where the sum would
// fire: it says which service it is.
func TestAnAlertIsOfOneService(t *testing.T) {
	for _, f := range faults {
		t.Run(f.alert, func(t *testing.T) {
			var input strings.Builder
			severity := ""
			for _, rule := range rules(t) {
				if rule.Alert == f.alert {
					severity = rule.Labels["severity"]
				}
			}
			for service, all := range map[string]map[string]string{
				`job="shop",namespace="prod"`: f.ill, `job="shop",namespace="staging"`: f.other, `job="blog",namespace="prod"`: f.other, `job="blog"`: f.other,
			} {
				for series, values := range all {
					fmt.Fprintf(&input, "      - {series: '%s', values: '%s'}\n", labelled(series, service+","+f.label+`="product"`), values)
				}
			}
			firing := fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing"`, f.alert)
			out, err := promtool(t, fmt.Sprintf(`tests:
  - interval: 30s
    input_series:
%s    promql_expr_test:
      - expr: '%s}'
        eval_time: 59m
        exp_samples: [{labels: '%s,job="shop",namespace="prod",%s="product",severity=%q}', value: 1}]
`, &input, firing, firing, f.label, severity))
			if err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
	for _, rule := range rules(t) {
		if !slices.ContainsFunc(faults, func(f faulty) bool { return f.alert == rule.Alert }) {
			t.Errorf("%s is not tried with two services", rule.Alert)
		}
	}
}

// Where there are few looks, one or two old values are a large share, and no alarm yet.
func TestTwoOldValuesAmongFewLooksAreNoAlarm(t *testing.T) {
	for old, alarms := range map[string]string{"0x100 1x12 2x7": "", "0x100 1x6 2x5 3x7": `{value: 1, labels: '{}'}`} {
		out, err := promtool(t, fmt.Sprintf(`tests:
  - interval: 30s
    input_series:
      - {series: 'levee_audit_old_total{after="2s",job="shop",cache="product"}', values: '%s'}
      - {series: 'levee_audit_looked_total{after="2s",job="shop",cache="product"}', values: '%s'}
    promql_expr_test:
      - expr: 'count(ALERTS{alertname="LeveeOldAfterChange"})'
        eval_time: 59m
        exp_samples: [%s]
`, old, few, alarms))
		if err != nil {
			t.Errorf("%s: %v:\n%s", old, err, out)
		}
	}
}

// The operator of Prometheus gets the alerts that Prometheus gets.
func TestThePrometheusRuleHasTheAlerts(t *testing.T) {
	_, groups, _ := strings.Cut(cacheprom.Alerts, "\ngroups:\n")
	manifest := string(redistest.Must(os.ReadFile("prometheusrule.yaml")))
	head, spec, _ := strings.Cut(manifest, "\nspec:\n")
	want := regexp.MustCompile("(?m)^(.)").ReplaceAllString("groups:\n"+groups, "  $1")
	if spec != want {
		t.Error("prometheusrule.yaml does not have the groups of alerts.yml under spec, two spaces further in")
	}
	if !strings.HasSuffix(head, "\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: levee") {
		t.Errorf("it is none by its head:\n%s", head)
	}
	var file struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name string }
		Spec       struct {
			Groups []struct {
				Name  string
				Rules []rule
			}
		}
	}
	check(t, yaml.UnmarshalStrict([]byte(manifest), &file))
	if got, want := fmt.Sprint(file.Spec.Groups[0].Rules), fmt.Sprint(rules(t)); got != want {
		t.Errorf("it reads as\n%s\nwant\n%s", got, want)
	}
}

// A panel is one of the dashboard that shows something.
type panel struct {
	Title   string
	Targets []query
}

type query struct{ Expr, LegendFormat string }

func panels(t *testing.T) (all []panel, variables []string) {
	t.Helper()
	var dashboard struct {
		Panels     []panel
		Templating struct{ List []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(cacheprom.Dashboard), &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, v := range dashboard.Templating.List {
		variables = append(variables, v.Name)
	}
	return dashboard.Panels, variables
}

// chosen is an expression of the dashboard with its variables replaced.
func chosen(expr, namespace, job string) string {
	return strings.NewReplacer("$__rate_interval", "5m", "$cache", ".*", "$namespace", namespace, "$job", job).Replace(expr)
}

// With all services chosen, each value that a panel shows is what it shows for one service alone. Two services are
// compared that differ by the job, and two that differ by the namespace. Catches a panel that adds services up, and one that ignores the choice.
func TestAPanelDoesNotMixServices(t *testing.T) {
	all, variables := panels(t)
	for _, want := range []string{"namespace", "job", "cache"} {
		if !slices.Contains(variables, want) {
			t.Errorf("the dashboard has no variable %s", want)
		}
	}
	families := everything(t)
	services := []struct{ namespace, job string }{{"prod", "shop"}, {"prod", "blog"}, {"staging", "shop"}}
	var input strings.Builder
	for _, s := range services {
		fmt.Fprintf(&input, "      - {series: 'up{namespace=%q,job=%q}', values: '%s'}\n", s.namespace, s.job, one)
	}
	for _, family := range families {
		for i, m := range family.GetMetric() {
			l := labels(m)
			delete(l, "name")
			delete(l, "cache")
			label := "cache"
			if regexp.MustCompile("^levee_(breaker|filter|lock)_").MatchString(family.GetName()) {
				label = "name"
			}
			for s, service := range services {
				own := fmt.Sprintf("namespace=%q,job=%q,%s=%q", service.namespace, service.job, label, "product")
				for k, v := range l {
					own += fmt.Sprintf(",%s=%q", k, v)
				}
				step := len(family.GetName())%7 + 1 + (i+2)*(s+1)*(s+2)
				if m.GetHistogram() == nil {
					values := fmt.Sprintf("%d+%dx120", step, step)
					if family.GetName() == "levee_cache_messages_live" {
						values = none
					}
					fmt.Fprintf(&input, "      - {series: '%s{%s}', values: '%s'}\n", family.GetName(), own, values)
					continue
				}
				for b, bound := range []string{"0.1", "1", "10", "+Inf"} {
					fmt.Fprintf(&input, "      - {series: '%s_bucket{%s,le=%q}', values: '0+%dx120'}\n", family.GetName(), own, bound, step*(b+1)+s*b*b)
				}
				fmt.Fprintf(&input, "      - {series: '%s_count{%s}', values: '0+%dx120'}\n", family.GetName(), own, step)
				fmt.Fprintf(&input, "      - {series: '%s_sum{%s}', values: '0+%dx120'}\n", family.GetName(), own, step*step)
			}
		}
	}
	var tests strings.Builder
	empty := func(expr string) {
		fmt.Fprintf(&tests, "      - expr: '%s'\n        eval_time: 50m\n", expr)
	}
	for _, p := range all {
		for _, target := range p.Targets {
			both := chosen(target.Expr, ".*", ".*")
			var alone []string
			for _, s := range services {
				of := chosen(target.Expr, s.namespace, s.job)
				alone = append(alone, "("+of+")")
				empty(fmt.Sprintf("(%s) unless on (namespace, job) up{namespace=%q,job=%q}", of, s.namespace, s.job)) // the choice counts
			}
			empty(fmt.Sprintf("absent(%s)", both)) // it shows something
			empty(fmt.Sprintf("(%s) != (%s)", both, strings.Join(alone, " or ")))
			slices.Reverse(alone)
			empty(fmt.Sprintf("(%s) != (%s)", both, strings.Join(alone, " or ")))
			for _, label := range []string{"{{job}}", "{{namespace}}"} {
				if !strings.Contains(target.LegendFormat, label) {
					t.Errorf("the legend %q of %q lacks %s", target.LegendFormat, p.Title, label)
				}
			}
		}
	}
	if out, err := promtool(t, "tests:\n  - interval: 30s\n    input_series:\n"+input.String()+"    promql_expr_test:\n"+tests.String()); err != nil {
		t.Errorf("%v:\n%.20000s", err, out)
	}
}

var grouping = regexp.MustCompile(`\b(by|on) \(([^)]*)\)`)

// The tests above try each alert and each panel with services that differ in one way; this one reads all of them.
func TestEachGroupingKeepsJobAndNamespace(t *testing.T) {
	n := 0
	for _, text := range []string{cacheprom.Alerts, cacheprom.Dashboard} {
		for _, found := range grouping.FindAllStringSubmatch(text, -1) {
			n++
			if !strings.HasPrefix(found[2], "namespace, job, ") {
				t.Errorf("%s mixes services", found[0])
			}
		}
		for _, found := range regexp.MustCompile(`\b(sum|max|min|count|avg|without|group_left|group_right) ?\(`).FindAllString(text, -1) {
			t.Errorf("%s is not for what is read here", found)
		}
	}
	if n < 100 {
		t.Errorf("%d groupings", n)
	}
}
