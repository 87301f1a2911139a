package guard_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/guard"
	"github.com/levee-go/levee/internal/redistest"
)

// gobreaker calls back under its mutex: State, Stats or Do in there is a deadlock.
func TestOnStateChangeMayUseTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *guard.Breaker
		var seen []guard.State
		b = newBreaker(t, guard.Options{OnStateChange: func(from, to guard.State) {
			seen = append(seen, to)
			_, _ = b.State(), b.Stats()
			_ = b.Do(context.Background(), fail)
			b.State()
		}})
		trip(t, b)
		synctest.Wait()
		time.Sleep(6 * time.Second)
		_ = b.State()
		synctest.Wait()
		want := []guard.State{guard.Open, guard.HalfOpen, guard.Open} // the callback's own Do failed
		if len(seen) != len(want) {
			t.Fatalf("saw %v, want %v", seen, want)
		}
		for i := range want {
			if seen[i] != want[i] {
				t.Fatalf("saw %v, want %v", seen, want)
			}
		}
	})
}

func TestASlowOnStateChangeDelaysNoCallAndHearsAllInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last, heard := guard.Closed, 0
		b := newBreaker(t, guard.Options{OnStateChange: func(from, to guard.State) {
			time.Sleep(time.Hour)
			if from != last {
				t.Errorf("change from %v after one to %v", from, last)
			}
			last, heard = to, heard+1
		}})
		for range 5 {
			begin := time.Now()
			trip(t, b)
			if took := time.Since(begin); took != 0 {
				t.Errorf("calls were delayed by %v", took)
			}
			time.Sleep(6 * time.Second)
			if err := b.Do(t.Context(), succeed); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if heard != 15 || last != guard.Closed {
			t.Errorf("heard %d changes, the last to %v, want 15, to closed", heard, last)
		}
	})
}

// Catches a list without a bound of changes that are still to be told: with a
// callback that hangs, it would grow with every change of a flapping source.
func TestAHangingOnStateChangeCostsBoundedMemoryAndKeepsTheChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		last, heard := guard.Closed, 0
		b := newBreaker(t, guard.Options{OnStateChange: func(from, to guard.State) {
			<-release
			if from != last {
				t.Errorf("change from %v after one to %v", from, last)
			}
			last, heard = to, heard+1
		}})
		for range 100 {
			trip(t, b)
			time.Sleep(6 * time.Second)
			_ = b.Do(t.Context(), succeed)
		}
		close(release)
		synctest.Wait()
		if heard > 66 || last != guard.Closed {
			t.Errorf("heard %d changes, the last to %v, want at most 66, to closed", heard, last)
		}
	})
}

func TestAPanicOfOnStateChangeIsContainedAndLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		var log redistest.Log
		b := newBreaker(t, guard.Options{Logger: log.Logger(), OnStateChange: func(_, _ guard.State) {
			if n++; n == 1 {
				panic("boom")
			}
			runtime.Goexit()
		}})
		trip(t, b)
		time.Sleep(6 * time.Second)
		_ = b.Do(t.Context(), succeed)
		synctest.Wait()
		if n != 3 || log.Count("a hook panicked") != 1 || log.Count("boom") != 1 {
			t.Errorf("%d calls, want 3 and one line of the first:\n%s", n, &log)
		}
	})
}

// An operator reads once that a breaker has opened, why, and that it has closed again.
// Catches a breaker that says nothing, so that nobody knows why loads are refused, and one
// that tells each of its tries.
func TestABreakerThatOpensAndClosesSaysSoOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log redistest.Log
		b := newBreaker(t, guard.Options{Name: "catalogue", Logger: log.Logger()})
		trip(t, b)
		for range 20 { // it tries, and the source still fails: for longer than one line a minute
			time.Sleep(6 * time.Second)
			_ = b.Do(t.Context(), fail)
		}
		time.Sleep(6 * time.Second)
		if err := b.Do(t.Context(), succeed); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, line := range []string{
			`level=WARN msg="levee: a breaker is open: the source fails and is not called for a while" breaker=catalogue error=` + `"` + errSource.Error() + `" event=breaker_open` + "\n",
			`level=INFO msg="levee: a breaker is closed again: the source works" breaker=catalogue event=breaker_closed` + "\n",
		} {
			if log.Count(line) != 1 || log.Count("level=") != 2 {
				t.Errorf("%q is not there, or not alone:\n%s", line, &log)
			}
		}
	})
}

// Catches a line that says breaker="".
func TestTheLinesOfABreakerWithoutANameDoNotNameIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log redistest.Log
		b := newBreaker(t, guard.Options{Logger: log.Logger()})
		trip(t, b)
		time.Sleep(7 * time.Second)
		_ = b.Do(t.Context(), succeed)
		synctest.Wait()
		if log.Count("level=WARN") != 1 || log.Count("level=INFO") != 1 || log.Count("breaker=") != 0 {
			t.Error(&log)
		}
	})
}
