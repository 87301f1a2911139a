package cacheprom_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/levee-go/levee/cache/cacheprom"
	"github.com/levee-go/levee/internal/dbtest"
	"github.com/levee-go/levee/internal/redistest"
)

// faster is by how much the alerts' windows are shortened, and with them the interval of
// scrapes: 30 s are one. A busy machine must be able to answer a scrape within that.
const faster = 30

var durations = regexp.MustCompile(`(\[|offset |for: )((?:\d+(?:ms|[smh]))+)`)

// scaled is the text of the rules with each window, each offset and each for times a fraction.
func scaled(rules string, times, by model.Duration) string {
	return durations.ReplaceAllStringFunc(rules, func(found string) string {
		parts := durations.FindStringSubmatch(found)
		length := redistest.Must(model.ParseDuration(parts[2]))
		return parts[1] + (length * times / by).String()
	})
}

// lasts is the longest time for which a rule waits until it fires; five wait longer in the file, and their faults
// last as long as the test does.
const lasts = model.Duration(5 * time.Minute / faster)

var waits = regexp.MustCompile(`for: \S+`)

// impatient is the text of the rules with each for cut to lasts.
func impatient(rules string) string {
	return waits.ReplaceAllStringFunc(rules, func(found string) string {
		return "for: " + min(lasts, redistest.Must(model.ParseDuration(strings.TrimPrefix(found, "for: ")))).String()
	})
}

// A prom is a real Prometheus that scrapes one target and evaluates the alerts.
type prom struct {
	t   *testing.T
	url string
}

// startPrometheus starts the Prometheus of this machine, or skips the test.
func startPrometheus(t *testing.T, target string) *prom {
	t.Helper()
	program := os.Getenv("LEVEE_PROMETHEUS")
	if program == "" {
		program = "prometheus"
	}
	program, err := exec.LookPath(program)
	if err != nil {
		dbtest.Absent(t, "no Prometheus: install one (.ci/install-prometheus does), or set LEVEE_PROMETHEUS")
	}
	dir := t.TempDir()
	rules := scaled(cacheprom.Alerts, 1, faster)
	if back := scaled(rules, faster, 1); back != scaled(cacheprom.Alerts, 1, 1) || rules == cacheprom.Alerts {
		t.Fatal("the rules are not those of the file, but for their durations")
	}
	rules = impatient(rules)
	config := fmt.Sprintf(`global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 500ms}
rule_files: [alerts.yml]
scrape_configs: [{job_name: service, static_configs: [{targets: [%q]}]}]
`, strings.TrimPrefix(target, "http://"))
	for name, text := range map[string]string{"alerts.yml": rules, "prometheus.yml": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &prom{t: t, url: fmt.Sprintf("http://127.0.0.1:%d", redistest.FreePort())}
	log := redistest.Must(os.Create(filepath.Join(dir, "log")))
	command := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+strings.TrimPrefix(p.url, "http://"), "--log.level=warn")
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		_ = log.Close()
		if t.Failed() {
			t.Logf("Prometheus says:\n%s", redistest.Must(os.ReadFile(log.Name())))
		}
	})
	redistest.Eventually(t, 60*time.Second, "Prometheus is ready", func() bool {
		response, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return p
}

// The page of metrics says how soon somebody is told of a source that is not asked any more.
// Catches a window of the rule that is longer, at the interval that the page names: the
// breaker opens just after a scrape, at 60 s, and had refused nothing before.
func TestAnOpenBreakerRingsWithinAMinuteAndAHalf(t *testing.T) {
	program, err := exec.LookPath("promtool")
	if err != nil {
		dbtest.Absent(t, "no promtool: it comes with Prometheus")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"alerts.yml": cacheprom.Alerts, "test.yml": `
rule_files: [alerts.yml]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - {series: 'levee_breaker_state{name="db"}', values: '0x4 2x20'}
      - {series: 'levee_breaker_calls_total{name="db",outcome="open"}', values: '_x5 30+30x20'}
    promql_expr_test:
      - {expr: 'ALERTS{alertname="LeveeBreakerOpen",alertstate="firing"}', eval_time: 60s}
      - expr: ALERTS{alertname="LeveeBreakerOpen",alertstate="firing"}
        eval_time: 150s
        exp_samples: [{labels: 'ALERTS{alertname="LeveeBreakerOpen",alertstate="firing",name="db",severity="critical"}', value: 1}]
`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(program, "test", "rules", filepath.Join(dir, "test.yml")).CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// firing are the alerts that fire now, each with its cache or name: LeveeGetsFail/product.
func (p *prom) firing() map[string]bool {
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	p.get("/api/v1/alerts", &answer)
	all := map[string]bool{}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			all[a.Labels["alertname"]+"/"+a.Labels["cache"]+a.Labels["name"]] = true
		}
	}
	return all
}

func (p *prom) get(path string, into any) {
	p.t.Helper()
	response, err := http.Get(p.url + path)
	if err != nil {
		p.t.Error(err)
		return
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		p.t.Error(err)
	}
}
