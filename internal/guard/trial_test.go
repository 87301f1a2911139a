package guard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/race"
)

func source(name string, knee float64, processes int) world {
	return world{
		name: name, knee: constantly(knee), slow: constantly(1), work: lognormal(0.05), processes: processes, apart: 20 / float64(processes),
		skew: 0.005, from: 45, end: 180,
	}
}

// worlds are those of the table in docs/scale.md.
func worlds(processes int) []world {
	slower, narrower := source("knee 50, ten times slower for a minute", 50, processes), source("knee 80, for a minute 8", 80, processes)
	slower.slow, slower.work = during(10, 1), lognormal(0.02)
	narrower.knee, narrower.work = during(8, 80), lognormal(0.02)
	slow, slowest := source("knee 200, loads of 300 ms", 200, processes), source("knee 200, loads of 1 s", 200, processes)
	slow.work, slowest.work = lognormal(0.3), lognormal(1)
	noisy, wide := source("knee 50, noise", 50, processes), source("no knee, noise", 1e6, processes)
	noisy.work, noisy.pauses = mixed(0.05), true
	wide.work, wide.pauses = mixed(0.05), true
	return []world{source("knee 20", 20, processes), source("knee 50", 50, processes), source("knee 200", 200, processes), slower, narrower, slow, slowest, noisy, wide}
}

// best is the smallest fixed limit within 1 % of the highest throughput.
func (w world) best(least, most int) (limit int, is result) {
	for _, n := range []int{1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 200, 256} {
		if n < least || n > most || n > 2 && float64(n*w.processes) > 3*w.knee(0) {
			continue
		}
		if r := w.simulate(1, always(n)); r.rate > 1.01*is.rate {
			limit, is = n, r
		}
	}
	return limit, is
}

// The table of docs/scale.md: LEVEE_LONG=1 go test -v -run TestTheLimitBesideOthers ./internal/guard
func TestTheLimitBesideOthers(t *testing.T) {
	if os.Getenv("LEVEE_LONG") == "" {
		t.Skip("takes three minutes: LEVEE_LONG=1")
	}
	var table strings.Builder
	for _, size := range []struct{ processes, most int }{{1, 256}, {4, 128}, {20, 32}} {
		for _, w := range worlds(size.processes) {
			limit, best := w.best(2, size.most)
			fmt.Fprintf(&table, "| %s | %d | %d |", w.name, size.processes, limit)
			for _, start := range []func(int) limiter{always(64), gradient2(2, size.most), vegas(2, size.most), adapting(2, size.most)} {
				r := w.simulate(2, start)
				fmt.Fprintf(&table, " %.2f, %.1f, %.2f, %d |", r.rate/best.rate, r.p99/best.p99, r.jain, r.back(60, 120))
			}
			fmt.Fprintln(&table)
		}
	}
	t.Log("\n" + table.String())
}

// Catches a limit that never falls (p99) or falls without need (rate), one that rises by a factor, and processes
// whose trials are not at the same moments.
func TestTheLimitFindsTheKnee(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for _, test := range []struct {
		knee            float64
		processes, most int
		best            int
	}{{20, 1, 256, 20}, {50, 1, 256, 50}, {200, 1, 256, 200}, {20, 4, 128, 5}, {200, 4, 128, 50}, {50, 20, 32, 3}, {200, 20, 32, 10}} {
		w := source("knee", test.knee, test.processes)
		w.from, w.end = 60, 100
		best, got := w.simulate(1, always(test.best)), w.simulate(2, adapting(2, test.most))
		if got.rate < 0.9*best.rate || got.p99 > 1.5*best.p99 {
			t.Errorf("%d processes, knee %.0f: %.0f/s and %.3f s, want at least 0.9 and at most 1.5 times %.0f/s and %.3f s: limits %v",
				test.processes, test.knee, got.rate, got.p99, best.rate, best.p99, got.limit)
		}
	}
}

// Three processes have all places when the last one comes, with clocks that are 10 ms wrong at most. Catches
// verdicts that are taken at their word, however few functions they are of.
func TestALateProcessComesToItsShare(t *testing.T) {
	w := source("knee", 60, 4)
	w.apart, w.skew, w.end = 15, 0.010, 120 // the last one comes after 45 s on average
	if got := w.simulate(3, adapting(2, 60)); got.jain < 0.9 {
		t.Errorf("from 90 s on Jain's index is %.2f: limits %v", got.jain, got.limit)
	}
}

// Catches a limit that falls because the source is slow, not because too many run, and one that
// takes its time to rise again.
func TestTheLimitIsBackTenSecondsAfterASlowMinute(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for _, processes := range []int{1, 4} {
		slower, narrower := worlds(processes)[3], worlds(processes)[4]
		if got := slower.simulate(2, adapting(2, 128)); got.back(60, 120) < 0 || got.back(60, 120) > 10 {
			t.Errorf("%v: back after %d s: limits %v", slower, got.back(60, 120), got.limit)
		} else if best := slower.simulate(2, always(50/processes)); got.minute < 0.85*best.minute {
			t.Errorf("%v: %.0f queries in the slow minute, and %.0f with a limit that is right: limits %v", slower, got.minute, best.minute, got.limit)
		}
		if got := narrower.simulate(2, adapting(2, 128)); got.back(60, 120) < 0 || got.back(60, 120) > 10 {
			t.Errorf("%v: back after %d s: limits %v", narrower, got.back(60, 120), got.limit)
		} else if fixed := narrower.simulate(2, always(80/processes)); got.minute < 1.2*fixed.minute {
			t.Errorf("%v: %.0f queries in the narrow minute, and %.0f with a limit that was right before: limits %v", narrower, got.minute, fixed.minute, got.limit)
		}
	}
}

// Queries end after 300 ms, by the database's statement_timeout or their callers' deadlines. Its knee falls from
// 20 to 8: of 20 queries most are cut off, and of 10 none. Catches a limit that waits for those that succeed to be
// slow. Where half of them is too much too, nothing can be learnt, and nothing must be: catches a limit that takes
// two groups that are cut off alike for two that are as fast.
func TestTheLimitFallsWhereSlowQueriesAreCutOff(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for _, test := range []struct{ knee, limit float64 }{{8, 12}, {1, 26}} {
		for seed := range uint64(3) {
			w := source("cut off", 20, 1)
			w.knee, w.cut = during(test.knee, 20), 0.3
			w.work = func(r *rand.Rand) float64 { return 0.1 * (0.95 + r.Float64()/10) }
			got := w.simulate(seed, adapting(2, 64))
			if most := slices.Max(got.limit[90:120]); float64(most) > test.limit {
				t.Errorf("knee %v: half a minute after it has fallen the limit is %d, want %v at most: %v", test.knee, most, test.limit, got.limit)
			}
		}
	}
}

// The same with queries of which some take three times as long as others, and of which therefore some succeed at
// any limit. Catches queries that count for no more than they took before they were cut off: the limit rises to its end.
func TestTheLimitFallsWhereSomeQueriesAreCutOff(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for _, cut := range []float64{0.25, 0.3, 0.5} {
		for seed := range uint64(10) {
			w := source("some cut off", 20, 1)
			w.knee, w.cut, w.work = during(8, 20), cut, lognormal(0.1)
			got, best := w.simulate(seed, adapting(2, 64)), w.simulate(seed, always(8))
			if got.minute < 0.8*best.minute {
				t.Errorf("given up after %v s: %.0f queries in the narrow minute, and %.0f with a limit that is right: limits %v", cut, got.minute, best.minute, got.limit)
			}
		}
	}
}

// One query in ten takes ten times as long, and the database stands still for 200 ms of each 10 s,
// but would bear any number. Catches a limit that takes every difference for a verdict.
func TestNoiseDoesNotLowerTheLimit(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	w := worlds(1)[8]
	for seed := range uint64(3) {
		got := w.simulate(seed, adapting(2, 64))
		sum := 0
		for _, n := range got.limit[60:] {
			sum += n
		}
		if mean := sum / len(got.limit[60:]); mean < 54 {
			t.Errorf("the limit is %d on average, want 54 of 64 at least: %v", mean, got.limit)
		}
	}
}

// Catches a limit by what a load should take: this source never was faster.
func TestASourceThatAlwaysIsSlowIsNotThrottled(t *testing.T) {
	w := worlds(1)[5]
	for seed := range uint64(3) {
		got := w.simulate(seed, adapting(2, 64))
		if last := got.limit[len(got.limit)-1]; last < 50 || slices.Min(got.limit[1:]) < 12 {
			t.Errorf("the limit ends at %d, want 50 of 64 at least: %v", last, got.limit)
		}
	}
}

func TestTheLimitStaysBetweenMinAndMax(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for _, w := range worlds(4) {
		got := w.simulate(5, func(int) limiter { return bounded{newTrial(Options{MinConcurrent: 6, MaxConcurrent: 24}), t} })
		if len(got.limit) == 0 {
			t.Error("nothing ran")
		}
	}
}

// A bounded is a trial between 6 and 24.
type bounded struct {
	*trial
	t *testing.T
}

func (b bounded) places(now time.Time) int {
	n := b.trial.places(now)
	if n < 6 || n > 24 {
		b.t.Fatalf("%d places, want 6 to 24", n)
	}
	return n
}

// The whole of it, through Do: 200 callers of a database that bears 20. Catches a limit that the queue does not
// keep to, and callers that are left waiting when it has risen.
func TestABreakerAdaptsItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(Options{MinConcurrent: 2, MaxConcurrent: 128, MaxBackground: 64})
		if err != nil {
			t.Fatal(err)
		}
		var (
			mu        sync.Mutex
			now, most int
			callers   sync.WaitGroup
			began     = time.Now()
		)
		query := func(context.Context) error {
			mu.Lock()
			now++
			if time.Since(began) > 30*time.Second {
				most = max(most, now)
			}
			takes := 50 * time.Millisecond * time.Duration(max(20, now)) / 20
			mu.Unlock()
			time.Sleep(takes)
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		}
		for range 200 {
			callers.Go(func() {
				for time.Since(began) < time.Minute {
					if err := b.Do(context.Background(), query); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		time.Sleep(time.Minute - 1)
		limit, waiting := b.Stats().Limit, b.Stats().Waiting
		b.queue.mu.Lock()
		background := b.queue.limits[Background]
		b.queue.mu.Unlock()
		callers.Wait()
		if limit < 15 || limit > 35 || most > 40 || background != limit/2 {
			t.Errorf("the limit is %d, want about 20; %d ran after half of the time; %d places for what nobody waits for", limit, most, background)
		}
		if waiting < 150 || b.Stats().Waiting > 0 {
			t.Errorf("%d waited, and %d still do", waiting, b.Stats().Waiting)
		}
	})
}

// A trial of places that are not all taken has no verdict. Catches one that takes half of them away all the same: of
// 40 callers with 64 places, 8 were refused three times in 32.
func TestPlacesThatAreNotAllTakenAreNotHalved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(Options{MinConcurrent: 2, MaxConcurrent: 64, QueueTimeout: -1})
		if err != nil {
			t.Fatal(err)
		}
		b.queue.trial.limit = 64
		began := time.Now()
		var callers sync.WaitGroup
		for range 40 {
			callers.Go(func() {
				for time.Since(began) < time.Minute {
					if err := b.Do(context.Background(), func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil }); err != nil {
						t.Errorf("got %v after %v", err, time.Since(began))
						return
					}
				}
			})
		}
		callers.Wait()
		if n := b.queue.trial.number; n < 5 {
			t.Errorf("there were %d trials, want one in 8 s", n)
		}
	})
}

// Four functions hang, and a trial takes four of eight places away. Catches a call that waits for the end of some
// function although the trial has given the places back: nobody else comes, and none ends.
func TestACallThatWaitsGetsThePlaceThatATrialGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(Options{MinConcurrent: 2, MaxConcurrent: 8, Timeout: -1})
		if err != nil {
			t.Fatal(err)
		}
		hang := make(chan struct{})
		state := func() (taken, limit int) {
			b.queue.mu.Lock()
			defer b.queue.mu.Unlock()
			return b.queue.taken[Normal], b.queue.limits[Normal]
		}
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() { _ = b.Do(context.Background(), func(context.Context) error { <-hang; return nil }) })
			callers.Go(func() { // all places are taken, until the trial begins
				for {
					_ = b.Do(context.Background(), func(context.Context) error { time.Sleep(10 * time.Millisecond); return nil })
					if _, limit := state(); limit < 8 {
						return
					}
				}
			})
		}
		for taken, limit := state(); taken != 4 || limit != 4; taken, limit = state() {
			time.Sleep(time.Millisecond)
		}
		began := time.Now()
		if err := b.Do(context.Background(), func(context.Context) error { return nil }); err != nil || time.Since(began) > 100*time.Millisecond {
			t.Errorf("got %v after %v, want a place within 3 units of 31 ms", err, time.Since(began))
		}
		close(hang)
		callers.Wait()
	})
}

// Errors may be quick and cancelled calls are as long as their callers like. Catches trials that are timed by them.
func TestWhatFailsIsNotWeighed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(Options{MinConcurrent: 2, MaxConcurrent: 16, FailureRatio: -1, IsFailure: func(err error) bool { return err == errDown }})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var callers sync.WaitGroup
		for range 50 {
			callers.Go(func() {
				for i := 0; time.Since(began) < time.Minute; i++ {
					ctx, cancel := context.WithCancel(context.Background())
					_ = b.Do(ctx, func(ctx context.Context) error {
						time.Sleep(time.Duration(1+i%3*100) * time.Millisecond)
						switch i % 3 {
						case 0:
							return errDown
						case 1:
							return errNone
						}
						cancel()
						return ctx.Err()
					})
					cancel()
				}
			})
		}
		callers.Wait()
		if tr := b.queue.trial; tr.samples != 0 || tr.limit != 8 || tr.number != 0 {
			t.Errorf("%d functions were weighed; the limit is %v", tr.samples, tr.limit)
		}
	})
}

var errDown, errNone = errors.New("down"), errors.New("no rows")
