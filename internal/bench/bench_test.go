package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	detector "github.com/levee-go/levee/internal/race"
)

func TestMain(m *testing.M) {
	if t := os.Getenv(childVariable); t != "" {
		os.Exit(childMain(t))
	}
	_ = os.Setenv("GORACE", detector.QuickExit())
	os.Exit(m.Run())
}

// All that a run does but its size. levee and one peer stand for all contenders.
func TestEveryWorkloadRuns(t *testing.T) {
	for _, w := range slices.Concat(workloads, prices, []workload{hitRatio[int64](1), hitRatio[string](1)}) {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			peer := w.reference
			if peer == w.contenders[0] {
				peer = w.contenders[1]
			}
			w.contenders = []string{w.contenders[0], peer}
			var out strings.Builder
			b := bench{size: tiny, rounds: 1, out: &out, progress: t.Output()}
			all, err := b.takeTurns(t.Context(), w)
			if err != nil {
				t.Fatal(err)
			}
			for _, contender := range w.contenders {
				for _, c := range w.columns {
					if len(all[contender]) != 1 {
						t.Fatalf("%s has %d reports", contender, len(all[contender]))
					}
					if figure := c.of(all[contender][0]); math.IsNaN(figure) || math.IsInf(figure, 0) {
						t.Errorf("%s of %s is %v", c.name, contender, figure)
					}
				}
			}
			b.table(w, all)
			if rows := strings.Count(out.String(), "\n| "); rows != 3 {
				t.Errorf("%d rows:\n%s", rows, out.String())
			}
		})
	}
}

func TestAFailedContenderIsNamedAndTheOthersGoOn(t *testing.T) {
	w := coldKey
	w.contenders = []string{"nobody", "otter"}
	var out strings.Builder
	b := bench{size: tiny, rounds: 2, out: &out, progress: t.Output()}
	err := b.run(t.Context(), []workload{w})
	if err == nil || !strings.Contains(err.Error(), `there is no contender "nobody"`) {
		t.Errorf("the error is %v", err)
	}
	if text := out.String(); !strings.Contains(text, "| nobody | failed |") || !strings.Contains(text, "| otter | 4.00 | 0 |") {
		t.Error(text)
	}
}

// A ratio is that of two figures of one round: the second round had half the machine.
func TestRatiosAreWithinARound(t *testing.T) {
	rounds := func(figures ...float64) (r []report) {
		for _, f := range figures {
			r = append(r, report{Counts: map[string]float64{"n": f}})
		}
		return r
	}
	c := counted("n", "%.0f", "n", true)
	if got := c.cell(rounds(20, 40, 60), rounds(10, 20, 30)); got != "40 (2.00)" {
		t.Error(got)
	}
	if got := c.cell(nil, rounds(10)); got != "failed" {
		t.Error(got)
	}
}

// mistaken answers for the key after the one that it was asked for.
type mistaken struct{}

func (mistaken) Get(_ context.Context, key string) ([]byte, error) {
	return raw.make(idOf(key) + 1), nil
}
func (m mistaken) GetMany(ctx context.Context, keys []string) (map[string][]byte, error) {
	got := map[string][]byte{}
	for _, key := range keys {
		got[key], _ = m.Get(ctx, key)
	}
	return got, nil
}
func (mistaken) Close() {}

// unlocked gives its lock to everybody.
type unlocked struct{}

func (unlocked) Lock(context.Context, string) (func() error, error) {
	return func() error { return nil }, nil
}
func (unlocked) Close() {}

// A benchmark of wrong answers is worth nothing: each way to ask finds them.
func TestWrongAnswersAreFound(t *testing.T) {
	s, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	rdb := redis.NewClient(&redis.Options{Addr: s.addr})
	defer rdb.Close()
	ctx, keys := t.Context(), keysOf(10)
	p := &process{report: report{map[string]float64{}, map[string][]float64{}}}
	loop := func(a asker) error {
		_, _, _, err := closedLoop(ctx, 2, time.Millisecond, a)
		return err
	}
	for name, ask := range map[string]func() error{
		"one":   func() error { return loop(askOne(mistaken{}, raw, keys)) },
		"batch": func() error { return loop(askMany(mistaken{}, raw, keys, 5)) },
		"local": func() error {
			if m := localLoop(ctx, mistaken{}, raw, keys, []int32{1, 2}, 1, time.Millisecond); m.wrong == 0 {
				return nil
			}
			return errors.New("found")
		},
		"arrivals": func() error { return openLoop(ctx, p, "t", 1000, 10*time.Millisecond, mistaken{}, raw, keys) },
		"nulls":    func() error { _, err := flood(ctx, mistaken{}, keysFrom(100, 10)); return err },
		"race":     func() error { return (&rows{db: rdb}).read(ctx, p, mistakenProduct{}) },
		"lock": func() error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			errs := make(chan error, 2)
			for range 2 {
				go func() { errs <- wantLock(ctx, p, unlocked{}, rdb, new(atomic.Int64)) }()
			}
			return <-errs
		},
	} {
		if err := ask(); err == nil {
			t.Errorf("%s: wrong answers went unnoticed", name)
		}
	}
}

// slow gives its lock after a while, to whom still wants it.
type slow struct{ unlocked }

func (s slow) Lock(ctx context.Context, name string) (func() error, error) {
	time.Sleep(20 * time.Millisecond)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return s.unlocked.Lock(ctx, name)
}

// On a busy machine a caller may come to its first question when the time for all of them is over: the quotient of
// nothing and nothing then ended the run, since JSON has no NaN.
func TestWhoComesLateAsksNevertheless(t *testing.T) {
	s, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	rdb := redis.NewClient(&redis.Options{Addr: s.addr})
	defer rdb.Close()
	ctx, keys := t.Context(), keysOf(10)
	over, cancel := context.WithCancel(ctx)
	cancel()
	p := &process{report: report{map[string]float64{}, map[string][]float64{}}}
	f, err := openFilter("one line", 10)
	if err != nil {
		t.Fatal(err)
	}
	r := nothing[[]byte]{opening[[]byte]{kind: raw}}
	known := func(figure float64) bool { return !math.IsNaN(figure) && !math.IsInf(figure, 0) }
	for name, asks := range map[string]func() bool{
		"local":  func() bool { return localLoop(ctx, r, raw, keys, []int32{1, 2}, 2, 0).asked > 0 },
		"filter": func() bool { return known(askFilter(f, keys, 2, 0)) },
		"16 ids": func() bool { return known(askAtOnce(f, append(keys, keys...), 16, 0)) },
		"closed": func() bool {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the callers begin when time is over
			n, _, _, err := closedLoop(ctx, 200, 0, askOne(r, raw, keys))
			return n >= 200 && err == nil
		},
		"race": func() bool {
			err := (&rows{db: rdb}).read(over, p, nothing[product]{opening[product]{kind: structs}})
			return p.report.Counts["reads"] > 0 && err == nil
		},
		"write": func() bool {
			err := (&rows{db: rdb}).write(over, p, invalidates{})
			return p.report.Counts["writes"] > 0 && err == nil
		},
		"lock": func() bool {
			_ = contend(ctx, p, slow{}, rdb, time.Millisecond) // several have it, which is an error
			return p.report.Counts["rate"] > 0
		},
	} {
		if !asks() {
			t.Errorf("%s: nobody asked", name)
		}
	}
}

type invalidates struct{ mistakenProduct }

func (invalidates) Invalidate(context.Context, string) error { return nil }

// The last message may be noted before another: the figures were read beside that, which the race detector saw.
func TestLatenciesAreCompleteWhenTheLastOfThemIsNoted(t *testing.T) {
	l := newLatencies(2)
	l.note(1, time.Second)
	select {
	case <-l.all:
		t.Error("one of two was enough")
	default:
	}
	l.note(0, time.Minute)
	<-l.all
	if l.took[0] != time.Minute || l.took[1] != time.Second {
		t.Error(l.took)
	}
}

type mistakenProduct struct{}

func (mistakenProduct) Get(_ context.Context, key string) (product, error) {
	return structs.make(idOf(key) + 1), nil
}
func (mistakenProduct) Close() {}

// A reader that serves what it loaded before a write is seen by the race.
func TestTheRaceCountsStaleAnswers(t *testing.T) {
	s, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	rdb := redis.NewClient(&redis.Options{Addr: s.addr})
	defer rdb.Close()
	for _, key := range keysOf(racedRows) {
		if err := rdb.Set(t.Context(), "least:"+key, 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	p := &process{report: report{map[string]float64{}, map[string][]float64{}}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := (&rows{db: rdb}).read(ctx, p, nothing[product]{opening[product]{kind: structs}}); err != nil {
		t.Fatal(err)
	}
	// Row 0 comes with a Stock of 0, which is before the write; the others with their ids.
	if p.report.Counts["stale"] == 0 || p.report.Counts["stale"] == p.report.Counts["reads"] {
		t.Errorf("of %v reads %v were stale", p.report.Counts["reads"], p.report.Counts["stale"])
	}
}

func TestTheProxyDelaysAnswersAndNothingElse(t *testing.T) {
	s, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	const delay = 20 * time.Millisecond
	proxy, err := startProxy(s.addr, delay)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.stop()
	rdb := redis.NewClient(&redis.Options{Addr: proxy.addr()})
	defer rdb.Close()
	value := strings.Repeat("x", 1<<20)
	if err := rdb.Set(t.Context(), "k", value, 0).Err(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	got, err := rdb.Get(t.Context(), "k").Result()
	if took := time.Since(began); err != nil || got != value || took < delay {
		t.Errorf("after %v: %d bytes, %v", took, len(got), err)
	}
}

func TestFiltersHoldWhatIsInThem(t *testing.T) {
	for _, contender := range filters.contenders {
		f, err := openFilter(contender, 10_000)
		if err != nil {
			t.Fatal(err)
		}
		for id := range 10_000 {
			f.Add(fmt.Sprint(id))
		}
		passed := 0
		for range 10_000 {
			if id := rand.IntN(10_000); !f.MayContain(fmt.Sprint(id)) {
				t.Fatalf("%s denies %d", contender, id)
			}
			if f.MayContain(fmt.Sprint(1_000_000 + rand.IntN(1_000_000))) {
				passed++
			}
		}
		if passed > 250 {
			t.Errorf("%s lets %d of 10,000 absent ids pass", contender, passed)
		}
	}
}

func TestEveryContenderSaysHowItIsSetUp(t *testing.T) {
	for _, w := range workloads {
		for _, contender := range w.contenders {
			w.contenders = []string{contender}
			if len(settingsOf([]workload{w})) != 1 {
				t.Errorf("%s of %s does not", contender, w.name)
			}
		}
	}
}
