package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) {
	scraperMain() // this program is the scraper too
	goleak.VerifyTestMain(m)
}

// smallScale is large enough for a rate to be measured, and small enough for the race detector. Nobody is impatient, and no filter
// abstains for being behind: what is tested are the promises, not how busy the machine is.
var smallScale = scale{
	processes: 2, queryTime: 2 * time.Millisecond, connections: 10, rate: 0.01,
	maxLag: 30 * time.Second, transaction: 3 * time.Second, redis: 30 * time.Second,
	lasts: 700 * time.Millisecond, least: [2]int{20, 500}, patience: 3 * time.Minute,
	visits: 160, newEvery: 20 * time.Millisecond, rebuildEvery: 20 * time.Millisecond,
	clients: 16, requests: 3000,
}

// runSmall makes all runs on the small scale.
func runSmall(t *testing.T, s settings) []result {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("GORACE", race.QuickExit())
	var out bytes.Buffer
	results, err := s.runs(t.Context(), &report{out: &out, progress: io.Discard})
	t.Logf("%s", out.String())
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != len(ways) {
		t.Fatalf("%d results", len(results))
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "levee*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	return results
}

// Without the filter in site.open the last two runs fail this. A Rebuild that forgot what is added meanwhile, or a Write that did not tell
// the filter and the null values, would refuse products made during the attack.
func TestTheFilterKeepsTheScraperFromTheDatabaseAndRefusesNoProduct(t *testing.T) {
	results := runSmall(t, settings{rows: 3000, seed: 1, size: smallScale})
	for _, m := range results {
		if m.missed > 0 || m.errors > 0 || m.odd > 0 {
			t.Errorf("%v: %d products refused, %d errors (%s), %d odd answers to the scraper", m.way, m.missed, m.errors, m.firstError, m.odd)
		}
		if m.visits != smallScale.visits || m.made < 1 {
			t.Errorf("%v: %d visits, %d new products", m.way, m.visits, m.made)
		}
		// Users may ask for each new product, in every process, before it is there and while it is made.
		early := float64(4 * m.made)
		scraped, absent := float64(m.scraped), float64(m.absent)
		if m.way < filtered && (scraped < float64(smallScale.least[0]) || absent < scraped*0.95) {
			t.Errorf("%v: %.0f of %.0f ids reached the database: that is no flood", m.way, absent, scraped)
		}
		// The filter lets one in a hundred through, and by chance hardly ever so many more.
		expected := smallScale.rate * scraped
		if m.way >= filtered && (scraped < float64(smallScale.least[1]) || absent > expected+6*math.Sqrt(expected)+early) {
			t.Errorf("%v: %.0f of %.0f ids reached the database", m.way, absent, scraped)
		}
		if m.keys > int64(m.visits+m.made+200) {
			t.Errorf("%v: %d keys in Redis after %d visits: the scraper has left something", m.way, m.keys, m.visits)
		}
	}
	if n := results[rebuilt].rebuilds; n < 1 {
		t.Errorf("%d rebuilds during the attack", n)
	}
}

// On a Redis that others use, the runs leave nothing behind and take nothing away.
func TestARealRedisIsLeftAsItWas(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	if err := rdb.Set(t.Context(), "shop:1", "theirs", 0).Err(); err != nil {
		t.Fatal(err)
	}
	size := smallScale
	size.lasts, size.least, size.visits, size.transaction = 100*time.Millisecond, [2]int{}, 20, 500*time.Millisecond
	for _, m := range runSmall(t, settings{redis: server.Addr(), rows: 1000, seed: 1, size: size}) {
		if m.commands == 0 || m.keys == 0 {
			t.Errorf("%v: %d commands, %d keys", m.way, m.commands, m.keys)
		}
	}
	if keys := rdb.Keys(t.Context(), "*").Val(); len(keys) != 1 || keys[0] != "shop:1" {
		t.Errorf("keys afterwards: %q", keys)
	}
}

// SCRAPER_POSTGRES=postgres://user@127.0.0.1/shop go test -run Postgres ./scraper
func TestAPostgresServesAsWell(t *testing.T) {
	dsn := os.Getenv("SCRAPER_POSTGRES")
	if dsn == "" {
		t.Skip("SCRAPER_POSTGRES names no server")
	}
	size := smallScale
	size.lasts, size.least, size.visits, size.transaction = 100*time.Millisecond, [2]int{}, 20, 500*time.Millisecond
	for _, m := range runSmall(t, settings{postgres: dsn, rows: 1000, seed: 1, size: size}) {
		if m.missed > 0 || m.errors > 0 {
			t.Errorf("%v: %d products refused, %d errors (%s)", m.way, m.missed, m.errors, m.firstError)
		}
	}
}

func TestMistakesInTheFlagsAreToldInOneLine(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-rows 5", "scraper: -rows must be from 1,000 to 10,000,000, not 5"},
		{"-rows many", `scraper: invalid value "many" for flag -rows`},
		{"-speed 3", "scraper: flag provided but not defined: -speed"},
		{"now", `scraper: unexpected argument "now"`},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(test.args), &out, &errs); code != 2 {
			t.Errorf("%s: exit code %d, want 2", test.args, code)
		}
		if got := errs.String(); !strings.HasPrefix(got, test.want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %q", test.args, got)
		}
		if out.Len() > 0 {
			t.Errorf("%s: printed %q", test.args, out.String())
		}
	}
}

func TestHelpListsTheFlags(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-h"}, &out, &errs); code != 0 || !strings.Contains(errs.String(), "-postgres DSN") {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}

func TestAServerThatDoesNotAnswerIsToldInOneLine(t *testing.T) {
	addr := fmt.Sprint("127.0.0.1:", redistest.FreePort()) // where nobody listens
	for _, args := range [][]string{
		{"-redis", addr},
		{"-redis", "redis://" + addr + "/0"},
		{"-postgres", "postgres://nobody@" + addr + "/shop"},
		{"-postgres", "://"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, &out, &errs); code != 1 {
			t.Errorf("%v: exit code %d, want 1", args, code)
		}
		_, told, _ := strings.Cut(errs.String(), "scraper:")
		if strings.Count(told, "\n") != 1 {
			t.Errorf("%v: %q", args, told)
		}
	}
}

func TestAnInterruptEndsTheRunsAndCleansUp(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(500*time.Millisecond, interrupt)
	var out, errs bytes.Buffer
	began := time.Now()
	if code := run(ctx, []string{"-rows", "1000"}, &out, &errs); code != 1 || !strings.HasSuffix(errs.String(), "scraper: interrupted\n") {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "levee*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestTheShopAnswersOverHTTP(t *testing.T) {
	server, catalogue, err := settings{rows: 1000, size: smallScale}.open(t.Context(), &report{progress: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	s := site{way: filtered, name: server.Prefix, redis: server, catalogue: catalogue, rows: 1000, size: smallScale}
	h, err := s.openShop(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := httpClient(10 * time.Second)
	defer func() {
		client.CloseIdleConnections()
		for _, err := range []error{h.close(), catalogue.db.Close(), server.close()} {
			if err != nil {
				t.Error(err)
			}
		}
	}()
	for id, want := range map[int64]int{1: http.StatusOK, 1000: http.StatusOK, 1001: http.StatusNotFound, -1: http.StatusNotFound} {
		var p Product
		status, err := get(t.Context(), client, h.url, id, &p)
		if err != nil || status != want || status == http.StatusOK && p != (Product{id, nameOf(id)}) {
			t.Errorf("product %d: status %d, %+v, %v", id, status, p, err)
		}
	}
	resp, err := client.Get(h.url + "x")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("no number: status %d", resp.StatusCode)
	}
}

func TestCallsOfARealRedisAreAddedUp(t *testing.T) {
	info := "# Commandstats\r\ncmdstat_get:calls=12,usec=3\r\ncmdstat_config|get:calls=30,usec=3,failed_calls=0\r\n"
	if n, err := sumCalls(info); n != 42 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := sumCalls("cmdstat_get:calls=x,usec=3"); err == nil {
		t.Error("no error")
	}
}

func TestPercentilesAreNearestRanks(t *testing.T) {
	var seen tally
	if d := seen.percentile(99); d != 0 {
		t.Errorf("of nothing: %v", d)
	}
	for i := range 200 {
		seen.answered(time.Duration(200-i), nil)
	}
	if p50, p99 := seen.percentile(50), seen.percentile(99); p50 != 100 || p99 != 198 {
		t.Errorf("p50 %d, p99 %d", p50, p99)
	}
}

func TestTheTableIsPlainTextOrMarkdown(t *testing.T) {
	m := result{way: filtered, scraped: 2000, queries: 345, absent: 2, commands: 67, keys: 8, heap: 9_100_000, atFirst: 2e6,
		p50: 250 * time.Microsecond, p99: 31 * time.Millisecond, missed: 1, errors: 3, firstError: "why", made: 4, rebuilds: 5}
	var text, markdown bytes.Buffer
	for _, r := range []*report{{out: &text}, {out: &markdown, markdown: true}} {
		r.heading()
		r.row(m)
	}
	if got := strings.Join(strings.Fields(text.String()), " "); !strings.HasSuffix(got, "levee: with the filter 2,000 345 67 8 9.1 MB 0.2 ms 31 ms 1 3 "+
		"queries for absent products: 2, 0.1 % of the ids scraped; heap before the attack: 2.0 MB; 4 products made; 5 rebuilds of the filter the first error: why") {
		t.Errorf("%q", got)
	}
	if got := markdown.String(); !strings.HasSuffix(got, "| levee: with the filter | 2,000 | 345 | 67 | 8 | 9.1 MB | 0.2 ms | 31 ms | 1 | 3 |\n") {
		t.Errorf("%q", got)
	}
}
