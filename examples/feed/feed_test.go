package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/levee-go/levee/examples/internal/servers"
	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(servers.Silence{})
	goleak.VerifyTestMain(m)
}

// smallScale has a TTL that ends after the test: what is served anew is served because of the feed.
var smallScale = scale{
	products: 5, every: 20 * time.Millisecond, ttl: 10 * time.Minute, grace: 300 * time.Millisecond, patience: 2 * time.Minute,
	followed: 700 * time.Millisecond, killed: 700 * time.Millisecond, without: time.Second, back: 700 * time.Millisecond,
}

// TestOnlyWithoutAFeedAreOldPricesServed plays everything on a Redis that is looked through afterwards.
func TestOnlyWithoutAFeedAreOldPricesServed(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	server := miniredis.RunT(t)
	var out bytes.Buffer
	s := settings{redis: server.Addr(), size: smallScale}
	rows, err := s.play(t.Context(), &report{out: &out})
	t.Logf("\n%s", out.String())
	if err != nil {
		t.Fatal(err)
	}
	phases := map[string][]row{}
	for _, r := range rows {
		phases[r.phase] = append(phases[r.phase], r)
		if r.killed {
			continue
		}
		if r.answers == 0 || r.changes == 0 {
			t.Errorf("%s, %s: %d answers, %d changes", r.phase, r.reader, r.answers, r.changes)
		}
		if r.phase != "nobody follows" && (r.missing > 0 || r.slowest > smallScale.patience) {
			t.Errorf("%s, %s: %d changes were never served, the slowest took %v", r.phase, r.reader, r.missing, r.slowest)
		}
	}
	for name, want := range map[string]int{
		"with the feed": 3, "the reader that follows is killed": 2, "nobody follows": 3, "the feed is back": 3,
	} {
		alive := 0
		for _, r := range phases[name] {
			if !r.killed {
				alive++
			}
		}
		if alive != want {
			t.Errorf("%s: %d readers, want %d", name, alive, want)
		}
	}
	for _, r := range phases["the reader that follows is killed"] {
		inTime := r.changes > int(smallScale.killed/smallScale.every)/2 // a writer that starves may begin when the lease ends
		if !r.killed && r.stale == 0 && inTime {
			t.Errorf("%s: nothing stale: the lease of the dead reader kept nobody out, so it was given back", r.reader)
		}
	}
	for _, r := range phases["nobody follows"] {
		if r.follows || r.stale == 0 || r.missing == 0 {
			t.Errorf("%s without a feed: %d stale answers, %d changes missing; then the other phases prove nothing", r.reader, r.stale, r.missing)
		}
	}
	if !strings.Contains(out.String(), "they follow again: ") || strings.Contains(out.String(), "again: 0 changes") {
		t.Error("no changes waited for the feed")
	}
	if left := server.Keys(); len(left) > 0 {
		t.Errorf("left behind in Redis: %q", left)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "levee*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestTheTallyTellsOldAnswersFromNewOnes(t *testing.T) {
	l := newLedger(2)
	got := newTally(l, time.Second)
	got.begin()
	start := time.Now()
	l.committed(1, start)
	l.committed(1, start.Add(time.Millisecond))
	got.answered(1, 0, start.Add(time.Second), nil)                    // as old as may be
	got.answered(1, 0, start.Add(time.Second+time.Nanosecond), nil)    // too old
	got.answered(1, 1, start.Add(time.Second+2*time.Millisecond), nil) // the second price is too old for it
	got.answered(1, 3, start, nil)                                     // one that is not noted yet
	got.answered(1, 2, start, nil)
	got.answered(2, 0, start.Add(time.Hour), nil) // nothing newer
	l.committed(1, start)
	l.committed(2, start)
	if got.upToDate() {
		t.Error("a price that was not served counts as served")
	}
	r, err := got.end()
	if err != nil || r.answers != 6 || r.stale != 2 || r.changes != 3 || r.missing != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if n := len(r.seconds); n != 1 || r.seconds[0] != r.slowest {
		t.Errorf("second by second %v, the slowest %v", r.seconds, r.slowest)
	}
	got.begin()
	if r, _ := got.end(); r.changes != 0 {
		t.Errorf("changes of an earlier phase count again: %+v", r)
	}
	got.answered(1, 0, start, context.DeadlineExceeded)
	if _, err := got.end(); err == nil {
		t.Error("an answer that is an error is not told")
	}
}

func TestMarkdown(t *testing.T) {
	var out bytes.Buffer
	r := &report{out: &out, markdown: true}
	r.opening(fullScale, "SQLite", "Redis")
	r.phase("a phase")
	r.row(row{reader: "reader 1", follows: true, changes: 1234, seconds: []time.Duration{3 * time.Millisecond, 0}})
	r.row(row{reader: "reader 2", killed: true})
	r.note("a %s", "note")
	_, table, _ := strings.Cut(out.String(), "\n\n")
	for line := range strings.Lines(table) {
		if n := strings.Count(line, "|"); n != len(columns)+2 {
			t.Errorf("%d bars: %s", n, line)
		}
	}
	for _, want := range []string{"| reader 1 | yes | 1,234 |", "| *second by second, ms: +3  +0* |"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
}

func TestMistakesAreToldInOneLine(t *testing.T) {
	addr := fmt.Sprint("127.0.0.1:", redistest.FreePort()) // where nobody listens
	for args, want := range map[string]string{
		"-speed 3":       "2 feed: flag provided but not defined: -speed",
		"now":            `2 feed: unexpected argument "now"`,
		"-redis " + addr: "1 feed: no Redis at " + addr,
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), strings.Fields(args), &out, &errs)
		if got := strconv.Itoa(code) + " " + errs.String(); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 1 || out.Len() > 0 {
			t.Errorf("%s: %q, printed %q", args, got, out.String())
		}
	}
}
