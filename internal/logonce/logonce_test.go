package logonce_test

import (
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redistest"
)

// A log that gets a line for every failure of an outage is of no use to anybody.
func TestEachKindIsLoggedOnceAMinuteAndTheRestCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log redistest.Log
		j := logonce.New(log.Logger(), "levee: ")
		for range 7 {
			j.Warn("this", "cache", "a")
		}
		j.Error("that")
		time.Sleep(logonce.Every)
		j.Warn("this", "cache", "b")
		synctest.Wait()
		for what, want := range map[string]int{
			`level=WARN msg="levee: this"`: 2, `level=ERROR msg="levee: that"`: 1, "cache=b unlogged=6": 1, "unlogged": 1,
		} {
			if n := log.Count(what); n != want {
				t.Errorf("%q is there %d times, want %d:\n%s", what, n, want, &log)
			}
		}
	})
}

// Loggers of one Log share what is logged and what is not.
func TestAnotherLoggerOfALogRepeatsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var one, other redistest.Log
		j := logonce.New(one.Logger(), "")
		j.Info("this")
		j.To(other.Logger()).Info("this")
		j.To(other.Logger()).Info("that")
		synctest.Wait()
		if one.Count("this") != 1 || other.Count("this") != 0 || other.Count("that") != 1 {
			t.Errorf("one: %s other: %s", &one, &other)
		}
	})
}

// The text of a line may be put better at any time; what is searched and alerted on stays.
func TestALineCarriesItsEventWhateverItsLogger(t *testing.T) {
	var log redistest.Log
	with := logonce.WithEvents(log.Logger())
	if logonce.WithEvents(with) != with {
		t.Error("a logger with events becomes another one, which adds them twice")
	}
	for _, l := range []*slog.Logger{with, with.With("cache", "a"), with.WithGroup("g")} {
		l.Warn("lock: a lease was lost", "name", "x")
		l.Warn("somebody else's line")
	}
	if log.Count(" event=lock_lost") != 2 || log.Count(" g.event=lock_lost") != 1 || log.Count("event=") != 3 {
		t.Errorf("%s", &log)
	}
	synctest.Test(t, func(t *testing.T) {
		var log redistest.Log
		logonce.New(log.Logger(), "levee: ").Info("redis replies again", "after", 1)
		synctest.Wait()
		if log.Count(`msg="levee: redis replies again" after=1 event=redis_back`) != 1 {
			t.Errorf("%s", &log)
		}
	})
}

// Two lines of one event could not be told apart, and one without has nothing that stays.
func TestEventsDiffer(t *testing.T) {
	seen := map[string]string{}
	for text, event := range logonce.Events() {
		if seen[event] != "" || !regexp.MustCompile(`^[a-z]+(_[a-z]+)+$`).MatchString(event) {
			t.Errorf("%q of %q, and of %q", event, text, seen[event])
		}
		seen[event] = text
	}
	if len(seen) < 70 {
		t.Errorf("%d events", len(seen))
	}
}

func TestNamesAreQuotedAndCut(t *testing.T) {
	for name, want := range map[string]string{"42": "42", "a b:{c}": "a b:{c}", "é": "é", "": "", `a"b`: `"a\"b"`, "a\\": `"a\\"`, "\xff": `"\xff"`, "a\u2028": `"a\u2028"`} {
		if got := logonce.Name("key", name).Value.Resolve().String(); got != want {
			t.Errorf("%q is logged as %s, want %s", name, got, want)
		}
	}
	if got := logonce.Name("key", "a\nb"+strings.Repeat("x", 1000)).Value.Resolve().String(); len(got) > 120 || strings.Contains(got, "\n") {
		t.Errorf("got %s", got)
	}
}
