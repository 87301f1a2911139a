package main

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"go.uber.org/goleak"

	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// smallScale is large enough to overwhelm its database, and small enough for the race detector. Nobody loses patience,
// since nothing is broken but the machine may be busy.
var smallScale = scale{
	processes: 3, database: databaseLoad{queryTime: 20 * time.Millisecond, connections: 6}, patience: time.Minute, redisTimeout: 20 * time.Second,
	flood: 500 * time.Millisecond, scrapes: 300, visits: 60, deadLinks: 5,
	hotReaders: 60, hotFor: 1600 * time.Millisecond, hotTTL: 500 * time.Millisecond,
	avalanche: redistest.Pick(200, 400), before: 500 * time.Millisecond, after: 500 * time.Millisecond, reads: redistest.Pick(450, 900),
	// Who does not hear of a write has the old product for 10 seconds.
	raceFor: time.Second, grace: 7 * time.Second, rows: 4, writers: 4, raceReaders: 16,
}

// runScene runs a scene on the small scale and checks the plain cache's result and those of levee. It runs the scene
// again if that did not show what the scene is about: a machine that is busy is too slow for some floods. What levee
// promises holds each time.
func runScene(t *testing.T, number int, check func(plain row, levee []row) (notShown string)) {
	t.Helper()
	runUntilShown(t, func() string { return check(runOnly(t, scenes[number-1], smallScale)) })
}

func runUntilShown(t *testing.T, run func() (notShown string)) {
	t.Helper()
	notShown := ""
	for range 5 {
		if notShown = run(); notShown == "" || t.Failed() {
			return
		}
		t.Log("once more: ", notShown)
	}
	t.Error(notShown)
}

func runOnly(t *testing.T, scene scene, size scale) (first row, others []row) {
	t.Helper()
	s := settings{rows: 2000, seed: 1, size: size}
	var out bytes.Buffer
	r := &report{out: &out, progress: io.Discard, began: time.Now()}
	around, err := s.open(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := around.close(); err != nil {
			t.Error(err)
		}
	}()
	results, err := s.scene(t.Context(), r, around, scene, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", out.String())
	for _, result := range results[1:] {
		if result.wrong != 0 {
			t.Errorf("%s: %d wrong answers", result.step, result.wrong)
		}
	}
	return results[0], results[1:]
}

// Taking the filter out of the last steps makes this fail: their scrapers then reach the database like the others.
func TestScrapersStopAtTheFilter(t *testing.T) {
	runScene(t, 1, func(plain row, levee []row) (notShown string) {
		if nulls := levee[1]; nulls.absent > int64(smallScale.scrapes)*2/3 {
			t.Errorf("%s: %d queries for absent products; every other one was for a dead link", nulls.step, nulls.absent)
		}
		for _, m := range levee[2:] {
			// The filter lets one in a hundred through: 3 of 300, and hardly ever five times as many.
			if m.absent > int64(smallScale.scrapes)/20 {
				t.Errorf("%s: %d queries for absent products", m.step, m.absent)
			}
			if m.errors > 0 {
				t.Errorf("%s: %d errors, the first: %s", m.step, m.errors, m.firstError)
			}
		}
		if plain.absent < int64(smallScale.scrapes)*9/10 {
			return fmt.Sprintf("the plain cache let %d of %d scrapes through: that is no flood", plain.absent, smallScale.scrapes)
		}
		return ""
	})
}

// Without the flight each process loads many times at once, without the lease each of the three loads.
func TestAHotProductIsLoadedOncePerExpiry(t *testing.T) {
	runScene(t, 2, func(plain row, levee []row) (notShown string) {
		if most := slicesMax(plain.bursts); most < 3 {
			notShown = fmt.Sprintf("the plain cache loaded %d times per expiry: that is no stampede", most)
		}
		collapsed, levee := levee[0], levee[1:]
		if most := slicesMax(collapsed.bursts); most > smallScale.processes {
			t.Errorf("%s: %v loads per expiry, of %d processes", collapsed.step, collapsed.bursts, smallScale.processes)
		}
		for _, m := range levee {
			if len(m.bursts) < 2 {
				notShown = fmt.Sprintf("%s: the product was loaded %v times: it has not expired", m.step, m.bursts)
			}
			if slicesMax(m.bursts) != 1 {
				t.Errorf("%s: loads per expiry: %v, want 1 each", m.step, m.bursts)
			}
			if m.errors > 0 {
				t.Errorf("%s: %d errors, the first: %s", m.step, m.errors, m.firstError)
			}
		}
		return notShown
	})
}

func TestAnAvalancheKeepsToTheLimit(t *testing.T) {
	connections := int64(smallScale.database.connections)
	runScene(t, 3, func(plain row, levee []row) (notShown string) {
		if plain.peak <= 2*connections {
			notShown = fmt.Sprintf("the plain cache asked for %d connections of %d at once: that is no avalanche", plain.peak, connections)
		}
		if last := levee[len(levee)-1]; last.peak > connections {
			t.Errorf("%s: %d queries at once, with %d connections", last.step, last.peak, connections)
		}
		for _, m := range append(levee, plain) { // what the charts show is the table's
			n := len(m.readings)
			if n == 0 || m.readings[n-1].queries != m.queries {
				t.Errorf("%s: %d readings of %d queries: %v", m.step, n, m.queries, m.readings)
			}
			if n < 10 {
				notShown = fmt.Sprintf("%s: %d readings", m.step, n)
			}
		}
		return notShown
	})
}

func TestTheMostQueriesWithinATime(t *testing.T) {
	readings := []reading{{at: 0, queries: 0}, {at: 20, queries: 5}, {at: 40, queries: 5}, {at: 60, queries: 12}, {at: 80, queries: 13}}
	for within, want := range map[time.Duration]int64{0: 0, 20: 7, 40: 8, 100: 13} {
		if got := most(readings, within); got != want {
			t.Errorf("within %d: %d, want %d", within, got, want)
		}
	}
}

func TestNoReadIsOlderThanAnAcknowledgedWrite(t *testing.T) {
	runScene(t, 4, func(plain row, levee []row) (notShown string) {
		for i, m := range levee {
			if i == 0 && m.stale > 0 {
				t.Errorf("%s: %d stale answers without a local tier", m.step, m.stale)
			}
			// With local tiers the other processes hear of a write a moment after it.
			if m.old > 0 {
				t.Errorf("%s: %d answers still stale %v after the write", m.step, m.old, smallScale.grace)
			}
			if m.errors > 0 {
				t.Errorf("%s: %d errors, the first: %s", m.step, m.errors, m.firstError)
			}
		}
		if plain.stale == 0 {
			return "the plain cache gave no stale answer: that is no race"
		}
		return ""
	})
}

// What docs/results.md says of its rows, as far as it does not depend on the machine.
func TestEachStepTakesSomethingOff(t *testing.T) {
	size := smallScale
	size.hotTTL, size.scrapes, size.reads = 300*time.Millisecond, 160, redistest.Pick(200, 320)
	size.avalanche, size.before, size.after = 100, 100*time.Millisecond, 400*time.Millisecond
	runUntilShown(t, func() (notShown string) {
		nothing, steps := runOnly(t, stepByStep, size)
		plain, alone, nulls, filtered, last := steps[0], steps[2], steps[3], steps[4], steps[len(steps)-1]
		if all := int64(size.reads + size.scrapes); nothing.queries != all {
			t.Errorf("%d queries without a cache, want %d", nothing.queries, all)
		}
		if filtered.absent > int64(size.scrapes)/20 {
			t.Errorf("%s: %d queries for absent products", filtered.step, filtered.absent)
		}
		if connections := int64(size.database.connections); last.peak > connections {
			t.Errorf("%s: %d queries at once, with %d connections", last.step, last.peak, connections)
		}
		// On a busy machine fewer readers come at once, and the scrapers of a dead link all wait for one load, with and
		// without nulls.
		if plain.queries >= nothing.queries || alone.queries >= plain.queries || nulls.queries > plain.queries || last.queries >= alone.queries {
			return fmt.Sprintf("queries: %d without a cache, %d with a plain one, %d with one load of a key at a time, %d with nulls, %d with all",
				nothing.queries, plain.queries, alone.queries, nulls.queries, last.queries)
		}
		return ""
	})
}

// The page has a row for each step, in their order, from a run with -steps -markdown.
func TestThePageHasTheSteps(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "results.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, step := range stepByStep.steps {
		_, after, found := strings.Cut(page, "\n| "+step.name+" | ")
		if !found {
			t.Fatalf("the page has no row %q, or not in this place", step.name)
		}
		page = after
	}
}

func slicesMax(sizes []int) (most int) {
	for _, n := range sizes {
		most = max(most, n)
	}
	return most
}

func TestMistakesInTheFlagsAreToldInOneLine(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-rows 5", "drill: -rows must be from 10,000 to 10,000,000, not 5"},
		{"-rows many", `drill: invalid value "many" for flag -rows`},
		{"-scene 5", "drill: -scene must be 1 to 4, or 0 for all, not 5"},
		{"-scene -1", "drill: -scene must be 1 to 4"},
		{"-speed 3", "drill: flag provided but not defined: -speed"},
		{"scene", `drill: unexpected argument "scene"`},
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
		last := errs.String()[strings.Index(errs.String(), "drill:"):]
		if strings.Count(last, "\n") != 1 {
			t.Errorf("%v: %q", args, last)
		}
		t.Logf("%v: %s", args, last)
	}
}

// On a Redis that others use, the drill leaves nothing behind and takes nothing away.
func TestARealRedisIsLeftAsItWas(t *testing.T) {
	m := miniredis.RunT(t)
	if err := m.Set("shop:1", "theirs"); err != nil {
		t.Fatal(err)
	}
	size := smallScale
	size.flood, size.scrapes, size.visits = 50*time.Millisecond, 20, 20
	s := settings{redis: m.Addr(), rows: 200, seed: 1, only: 1, size: size}
	if err := s.drill(t.Context(), &report{out: io.Discard, progress: io.Discard}); err != nil {
		t.Fatal(err)
	}
	if keys := m.Keys(); len(keys) != 1 || keys[0] != "shop:1" {
		t.Errorf("keys afterwards: %q", keys)
	}
}

// DRILL_POSTGRES=postgres://user@127.0.0.1/shop go test -run Postgres ./drill
func TestAPostgresIsLeftAsItWas(t *testing.T) {
	dsn := os.Getenv("DRILL_POSTGRES")
	if dsn == "" {
		t.Skip("DRILL_POSTGRES names no server")
	}
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	schemas := func() (n int) {
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'levee%'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := schemas()
	s := settings{postgres: dsn, rows: 200, seed: 1, only: 4, size: smallScale}
	var out bytes.Buffer
	if err := s.drill(t.Context(), &report{out: &out, progress: io.Discard}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", out.String())
	if after := schemas(); after != before {
		t.Errorf("%d schemas of drills before, %d after", before, after)
	}
}

func TestAnInterruptEndsTheDrillAndCleansUp(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, interrupt)
	var out, errs bytes.Buffer
	began := time.Now()
	if code := run(ctx, []string{"-rows", "20000"}, &out, &errs); code != 1 || !strings.HasSuffix(errs.String(), "drill: interrupted\n") {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
	if took := time.Since(began); took > 30*time.Second { // the whole drill takes longer
		t.Errorf("it took %v", took)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "levee_drill_*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
