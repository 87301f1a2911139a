package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/levee-go/levee/examples/internal/servers"
)

func TestMain(m *testing.M) {
	redis.SetLogger(servers.Silence{})
	goleak.VerifyTestMain(m)
}

// smallScale is over in a few seconds. Nobody is impatient, so what counts is who gets an answer, not how busy the machine is.
var smallScale = scale{
	processes: 2, rows: 30, reads: 150, ttl: 250 * time.Millisecond,
	queryTime: 40 * time.Millisecond, queryPatience: 100 * time.Millisecond, connections: 4,
	patience: 4 * time.Second, redisTimeout: 200 * time.Millisecond, loadTimeout: 10 * time.Second,
	beat: 150 * time.Millisecond, calm: 2, trouble: 3,
}

func playSmall(t *testing.T, s settings) []score {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	var out bytes.Buffer
	scores, err := s.play(t.Context(), &report{out: &out})
	t.Logf("%s", out.String())
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "levee*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	return scores
}

// Without stale values the outage of the database reaches levee's users; without the breaker's limit its processes ask for more connections
// than there are; and an error of Redis in the way of an answer would show as one.
func TestOneOutageAtATimeReachesNobody(t *testing.T) {
	scores := playSmall(t, settings{seed: 1, size: smallScale})
	if len(scores) != len(smallScale.script()) {
		t.Fatalf("%d scenes", len(scores))
	}
	flood, failed := int64(0), 0
	for _, s := range scores {
		if s.levee.peak > int64(smallScale.connections) {
			t.Errorf("%s: %d queries of levee at once, with %d connections", s.scene.name, s.levee.peak, smallScale.connections)
		}
		if s.levee.asked() != s.plain.asked() {
			t.Errorf("%s: %d reads of levee, %d of the plain cache", s.scene.name, s.levee.asked(), s.plain.asked())
		}
		flood = max(flood, s.plain.peak)
		switch {
		case s.scene.out == redisOut|databaseOut: // what a process has not read since Redis was emptied it cannot know
		case s.scene.out == databaseOut && strings.Contains(s.levee.breakers, "R"):
			t.Logf("%s: Redis seems to be out too on a machine as slow as this", s.scene.name)
		case s.levee.errors > s.levee.overtaken && s.scene.name != "both are back": // which begins with a breaker that is open
			t.Errorf("%s: %d errors of levee, the first: %v", s.scene.name, s.levee.errors, s.levee.firstError)
		}
		failed += s.plain.errors
	}
	beats := 0
	for _, scene := range smallScale.script() {
		beats += scene.beats
	}
	page := settings{size: smallScale}.page(scores)
	for _, c := range page.Charts {
		for _, line := range c.Lines {
			if len(line.Points) != beats {
				t.Errorf("%s: %d points of %s, want %d", c.Title, len(line.Points), line.Name, beats)
			}
		}
	}
	if failed == 0 {
		t.Error("the plain cache has not noticed: that is no outage")
	}
	if flood <= 2*int64(smallScale.connections) {
		t.Errorf("the plain cache asked for %d connections of %d at once: that is no flood", flood, smallScale.connections)
	}
}

func TestARealServerIsStoppedAndKilled(t *testing.T) {
	size := smallScale
	size.beat, size.reads, size.patience = 40*time.Millisecond, 500, time.Second
	answered, failed := 0, 0
	for _, s := range playSmall(t, settings{redisServer: "redis-server", seed: 1, size: size}) {
		answered += s.levee.fresh + s.levee.stale
		failed += s.levee.errors
	}
	if answered < failed || answered+failed == 0 {
		t.Errorf("levee: %d reads answered, %d not", answered, failed)
	}
}

// What the script says of Redis is so: it hangs, goes on, is gone, and comes back without what it held.
func TestRedisDoesWhatTheScriptSays(t *testing.T) {
	for _, binary := range []string{"", "redis-server"} {
		t.Run(binary, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			r, err := servers.OpenFragile(t.Context(), binary)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			rdb := redis.NewClient(&redis.Options{Addr: r.Address, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true})
			defer rdb.Close()
			get := func(patience time.Duration) (string, error) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				return rdb.Get(ctx, "a").Result()
			}
			does := func(what string, err error) {
				t.Helper()
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
			does("Set", rdb.Set(t.Context(), "a", "1", 0).Err())
			does("Hang", r.Hang())
			if _, err := get(50 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) && !os.IsTimeout(err) {
				t.Errorf("it hangs, and says %v", err)
			}
			does("Resume", r.Resume())
			if v, err := get(20 * time.Second); v != "1" {
				t.Errorf("it goes on with %q, %v", v, err)
			}
			does("Lose", r.Lose())
			if _, err := get(20 * time.Second); err == nil || errors.Is(err, redis.Nil) {
				t.Errorf("it is gone, and says %v", err)
			}
			does("Return", r.Return())
			if _, err := get(20 * time.Second); !errors.Is(err, redis.Nil) {
				t.Errorf("it is back, and says %v", err)
			}
			does("Hang", r.Hang()) // it can be closed in any state
			does("Close", r.Close())
			if _, err := get(20 * time.Second); err == nil || errors.Is(err, redis.Nil) {
				t.Errorf("it is closed, and says %v", err)
			}
			if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestMistakesInTheFlagsAreToldInOneLine(t *testing.T) {
	for _, test := range []struct {
		args, want string
		code       int
	}{
		{"-reads 5", "outage: -reads must be from 10 to 5,000, not 5", 2},
		{"-reads many", `outage: invalid value "many" for flag -reads`, 2},
		{"-speed 3", "outage: flag provided but not defined: -speed", 2},
		{"now", `outage: unexpected argument "now"`, 2},
		{"-redis-server no-such-program", "outage: no redis-server: ", 1},
		{"-redis-server true", "outage: ", 1},
	} {
		t.Setenv("TMPDIR", t.TempDir())
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(test.args), &out, &errs); code != test.code {
			t.Errorf("%s: exit code %d, want %d", test.args, code, test.code)
		}
		if got := errs.String(); !strings.HasPrefix(got, test.want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %q", test.args, got)
		}
		if out.Len() > 0 {
			t.Errorf("%s: printed %q", test.args, out.String())
		}
		if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
			t.Errorf("%s: left behind: %v", test.args, left)
		}
	}
}

func TestHelpListsTheFlags(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-h"}, &out, &errs); code != 0 || !strings.Contains(errs.String(), "-redis-server program") {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}

// An interrupted reader wants the terminal back, also while Redis hangs.
func TestAnInterruptEndsItAndCleansUp(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, interrupt := context.WithCancel(t.Context())
	out := &watcher{word: "Redis hangs", then: interrupt}
	s := settings{seed: 1, size: smallScale}
	s.size.beat, s.size.patience = 20*time.Millisecond, time.Second
	if _, err := s.play(ctx, &report{out: out}); !errors.Is(err, context.Canceled) {
		t.Errorf("it ends in %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "levee*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A watcher waits for a word.
type watcher struct {
	word string
	then func()
}

func (w *watcher) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.word) {
		w.then()
	}
	return io.Discard.Write(p)
}

func TestTheSummaryIsPlainTextOrMarkdown(t *testing.T) {
	s := score{scene: scene{name: "Redis hangs"}}
	for i := range 200 {
		var err error
		if i == 0 {
			err = errors.New("why")
		}
		s.plain.note(time.Duration(200-i)*time.Millisecond, false, err, false)
		s.levee.note(time.Duration(200-i)*time.Microsecond, i < 20, err, false)
	}
	s.plain.add(figures{queries: 1200, peak: 7})
	s.plain.add(figures{queries: 34, peak: 5})
	var text, markdown bytes.Buffer
	(&report{out: &text}).summary([]score{s})
	(&report{out: &markdown, markdown: true}).summary([]score{s})
	if want := "Redis hangs 200 | 1 198 ms 1,234 7 | 1 19 0.2 ms 0 0 the first error of levee, while Redis hangs: why"; !strings.HasSuffix(strings.Join(strings.Fields(text.String()), " "), want) {
		t.Errorf("%q", text.String())
	}
	if want := "| Redis hangs | 200 | 1 | 198 ms | 1,234 | 7 | 1 | 19 | 0.2 ms | 0 | 0 |\n"; !strings.Contains(markdown.String(), want) {
		t.Errorf("%q", markdown.String())
	}
}
