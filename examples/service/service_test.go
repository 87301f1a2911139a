package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v2"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

// instanceVariable makes this program an instance of the service, as main is.
const instanceVariable = "LEVEE_SERVICE_INSTANCE"

func TestMain(m *testing.M) {
	if os.Getenv(instanceVariable) != "" {
		main()
		os.Exit(0)
	}
	redistest.Main(m, nil)
}

// An instance is a process of the service.
type instance struct{ api, admin string }

func start(t *testing.T, database, redis, filter string) instance {
	t.Helper()
	free := func() string { return fmt.Sprint("127.0.0.1:", redistest.FreePort()) }
	i := instance{free(), free()}
	ctx, stop := context.WithCancel(context.Background())
	process := exec.CommandContext(ctx, os.Args[0])
	process.Cancel = func() error { return process.Process.Signal(os.Interrupt) }
	process.WaitDelay = 10 * time.Second
	process.Env = append(os.Environ(), "GORACE="+race.QuickExit(),
		instanceVariable+"=1", "DATABASE_URL="+database, "REDIS_ADDR="+redis, "FILTER_REDIS_ADDR="+filter, "ADDR="+i.api, "ADMIN_ADDR="+i.admin, "ADMIN_TOKEN=secret")
	log := new(strings.Builder)
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if _ = process.Wait(); process.ProcessState.ExitCode() != 0 || strings.Contains(log.String(), "ERROR") {
			t.Errorf("the instance ended with %v:\n%s", process.ProcessState, log)
		}
	})
	redistest.Eventually(t, 30*time.Second, "the service answers", func() bool {
		resp, err := http.Get("http://" + i.api + "/product/1")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	return i
}

// A service that cannot listen ends and says why: Kubernetes and compose start it again.
func TestATakenPortEndsTheService(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free := fmt.Sprint("127.0.0.1:", redistest.FreePort())
	for _, addresses := range [][2]string{{taken.Addr().String(), free}, {free, taken.Addr().String()}} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		process := exec.CommandContext(ctx, os.Args[0])
		process.Env = append(os.Environ(), "GORACE="+race.QuickExit(), instanceVariable+"=1", "DATABASE_URL=file:"+filepath.Join(t.TempDir(), "products.sqlite"),
			"REDIS_ADDR=", "FILTER_REDIS_ADDR=", "ADDR="+addresses[0], "ADMIN_ADDR="+addresses[1])
		said, _ := process.CombinedOutput()
		if process.ProcessState.ExitCode() != 1 || !strings.Contains(string(said), "address already in use") {
			t.Errorf("with the addresses %q it ended with %v:\n%s", addresses, process.ProcessState, said)
		}
		cancel()
	}
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// Without Write in the handler the other instance goes on with the old price from its own memory, for half a minute.
func TestANewPriceIsEverywhere(t *testing.T) {
	server, filter := redistest.Start(t, "--maxmemory", "64mb", "--maxmemory-policy", "volatile-lru"), redistest.Start(t)
	database := "file:" + filepath.Join(t.TempDir(), "products.sqlite")
	one := start(t, database, server.Addr(), filter.Addr())
	two := start(t, database, server.Addr(), filter.Addr())
	price := func(i instance) string {
		status, body := get(t, "http://"+i.api+"/product/42")
		if status != http.StatusOK {
			t.Fatalf("status %d: %s", status, body)
		}
		return regexp.MustCompile(`"cents":\d+`).FindString(body)
	}
	if a, b := price(one), price(two); a != `"cents":142` || a != b {
		t.Errorf("%s at one, %s at the other", a, b)
	}
	if status, _ := get(t, "http://"+two.api+"/product/999999999"); status != http.StatusNotFound {
		t.Errorf("status %d for a product that is not there", status)
	}
	req, err := http.NewRequest(http.MethodPut, "http://"+one.api+"/product/42/price", strings.NewReader(url.Values{"cents": {"7"}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if now := price(one); resp.StatusCode != http.StatusNoContent || now != `"cents":7` {
		t.Errorf("status %d, then %s where the price was changed", resp.StatusCode, now)
	}
	redistest.Eventually(t, 5*time.Second, "the other instance has the new price", func() bool { return price(two) == `"cents":7` })

	kept := filter.Client(t).Keys(t.Context(), "*").Val()
	if len(kept) == 0 || strings.Contains(fmt.Sprint(kept), "levee:c1:") {
		t.Errorf("the Redis of the filter holds %q", kept)
	}
	for _, key := range server.Client(t).Keys(t.Context(), "*").Val() {
		if !strings.HasPrefix(key, "levee:c1:") {
			t.Errorf("the Redis of the cache holds %q, and may evict it", key)
		}
	}
	for token, want := range map[string]int{"": http.StatusForbidden, "secret": http.StatusOK} {
		req, err := http.NewRequest(http.MethodPost, "http://"+one.admin+"/admin/levee", strings.NewReader("cache=product&do=invalidate&key=42"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("status %d of an operator with the token %q", resp.StatusCode, token)
		}
	}
	for path, want := range map[string]string{"/metrics": `levee_breaker_state{name="products"} 0`, "/debug/levee": "product"} {
		if status, body := get(t, "http://"+one.admin+path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: status %d, no %s in %s", path, status, want, body)
		}
	}
}

// A scraper that tries ids with PUT must not fill the filter with them: it would let them pass, and then they reach the database.
func TestAPutTeachesTheFilterOnlyWhatExists(t *testing.T) {
	store, err := openStore(t.Context(), "file:"+filepath.Join(t.TempDir(), "products.sqlite"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.db.Close()
	if _, err := store.db.ExecContext(t.Context(), "INSERT INTO product VALUES (777777, 'new', 1)"); err != nil { // and nobody has told the filter
		t.Fatal(err)
	}
	exists, err := bloom.New(bloom.Options{Name: "product", Capacity: 100_000, FalsePositiveRate: 1e-6, Complete: true})
	if err != nil {
		t.Fatal(err)
	}
	defer exists.Close()
	products, err := cache.New(nil, store.Product, cache.Options{Name: "product", Filter: exists})
	if err != nil {
		t.Fatal(err)
	}
	defer products.Close()
	for id, want := range map[string]int{"777777": http.StatusNoContent, "999999": http.StatusNotFound} {
		w := httptest.NewRecorder()
		api(store, products).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/product/"+id+"/price?cents=7", nil))
		if w.Code != want {
			t.Errorf("product %s: status %d, want %d", id, w.Code, want)
		}
		if known := exists.MayContain(t.Context(), id); known != (want == http.StatusNoContent) {
			t.Errorf("product %s: the filter knows it: %v", id, known)
		}
	}
	if p, err := products.Get(t.Context(), 777777); err != nil || p.Cents != 7 {
		t.Errorf("%+v, %v", p, err)
	}
}

// What compose.yaml mounts is there, and Prometheus asks the instances that it starts.
func TestTheFilesOfComposeFitTogether(t *testing.T) {
	var compose struct {
		Services map[string]struct {
			Volumes []string
			Ports   []string
			Build   struct{ Context, Dockerfile string }
			Command string
			Restart string
			Health  struct{ Test []string } `yaml:"healthcheck"`
		}
	}
	read(t, "compose.yaml", &compose)
	// While the image initializes itself, a server listens on a socket alone; and two instances may
	// make the table at once, of which PostgreSQL lets one fail.
	if check := strings.Join(compose.Services["postgres"].Health.Test, " "); !strings.Contains(check, "-h 127.0.0.1") || compose.Services["two"].Restart != "on-failure" {
		t.Errorf("the instances begin after %q, and restart %q", check, compose.Services["two"].Restart)
	}
	for name, policy := range map[string]string{"redis": "volatile-lru", "redis-filter": "noeviction"} {
		if !strings.Contains(compose.Services[name].Command, "--maxmemory-policy "+policy) {
			t.Errorf("%s does not say %s: %s", name, policy, compose.Services[name].Command)
		}
	}
	for name, service := range compose.Services {
		for _, volume := range service.Volumes {
			if file, _, _ := strings.Cut(volume, ":"); !exists(file) {
				t.Errorf("%s mounts %s, which is not there", name, file)
			}
		}
		for _, port := range service.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s listens to the world: %s", name, port)
			}
		}
		if b := service.Build; b.Dockerfile != "" && !exists(filepath.Join(b.Context, b.Dockerfile)) {
			t.Errorf("%s is built from %s, which is not there", name, b.Dockerfile)
		}
	}
	var prometheus struct {
		RuleFiles []string `yaml:"rule_files"`
		Scrape    []struct {
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	read(t, "prometheus.yml", &prometheus)
	targets := prometheus.Scrape[0].Static[0].Targets
	if got := fmt.Sprint(targets, prometheus.RuleFiles); got != "[one:9090 two:9090] [alerts.yml]" {
		t.Errorf("Prometheus asks %s", got)
	}
	for _, target := range targets {
		if name, _, _ := strings.Cut(target, ":"); compose.Services[name].Build.Context == "" {
			t.Errorf("%s is no instance", name)
		}
	}
	for _, file := range []string{"grafana/datasource.yaml", "grafana/dashboards.yaml"} {
		var any map[string]any
		read(t, file, &any)
	}
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
