package guard_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/guard"
)

// gobreaker allows a window no longer than a call. Then each result falls into a
// window that is over, and the breaker never opens. 64 callers ask a database that
// hangs until the timeout.
func TestASourceThatOnlyHangsOpensIt(t *testing.T) {
	for _, o := range []guard.Options{
		{},
		{Timeout: 600 * time.Millisecond, Window: 1200 * time.Millisecond},
		{Timeout: 20 * time.Second},
		{MaxConcurrent: 1},
		{MaxConcurrent: 3, MinRequests: 50},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBreaker(t, o)
			ctx, stop := context.WithCancel(t.Context())
			var callers sync.WaitGroup
			for range 64 {
				callers.Go(func() {
					for ctx.Err() == nil && b.State() == guard.Closed {
						if errors.Is(b.Do(ctx, obey), guard.ErrLimited) {
							time.Sleep(10 * time.Millisecond)
						}
					}
				})
			}
			time.AfterFunc(10*time.Minute, stop)
			callers.Wait()
			if ctx.Err() != nil {
				t.Errorf("%+v: still closed after 10 minutes without one success", o)
			}
			stop()
		})
	}
}

func TestItOpensByRatioOnly(t *testing.T) {
	b := newBreaker(t, guard.Options{FailureRatio: 0.5, MinRequests: 20})
	for range 11 {
		_ = b.Do(t.Context(), succeed)
	}
	for i := range 10 {
		if b.Do(t.Context(), fail); b.State() != guard.Closed {
			t.Fatalf("open after 11 successes and %d failures in a row", i+1)
		}
	}
	if b.Do(t.Context(), fail); b.State() != guard.Open {
		t.Error("closed after 11 successes and 11 failures, want open")
	}
}

func TestItNeedsMinRequestsToOpen(t *testing.T) {
	b := newBreaker(t, guard.Options{MinRequests: 20})
	for range 19 {
		_ = b.Do(t.Context(), fail)
	}
	if b.State() != guard.Closed {
		t.Error("open after 19 calls")
	}
	if b.Do(t.Context(), fail); b.State() != guard.Open {
		t.Error("closed after 20 failures of 20")
	}
}

func TestFailuresOutsideTheWindowAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{Window: 15 * time.Second})
		for range 100 { // one failure a second is 15 in the window, below MinRequests
			_ = b.Do(t.Context(), fail)
			time.Sleep(time.Second)
		}
		if b.State() != guard.Closed {
			t.Error("open, although no window held 20 calls")
		}
	})
}

// A window that starts again every 15 s sees half of these at a time.
func TestTheWindowRolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{Window: 15 * time.Second})
		time.Sleep(11 * time.Second)
		for range 20 { // around the 15th second
			_ = b.Do(t.Context(), fail)
			time.Sleep(400 * time.Millisecond)
		}
		if b.State() != guard.Open {
			t.Error("closed after 20 failures within 8s")
		}
	})
}

// A breaker that counts failures in a row opens here, so that one key that cannot
// be loaded makes all others fail.
func TestOneBadKeyDoesNotOpenIt(t *testing.T) {
	b := newBreaker(t, guard.Options{})
	for i := range 10_000 {
		load := succeed
		if i%100 >= 60 { // the bad key comes in bursts of 40
			load = fail
		}
		if err := b.Do(t.Context(), load); errors.Is(err, guard.ErrOpen) {
			t.Fatalf("refused at call %d", i)
		}
	}
}

func TestNotFoundIsASuccess(t *testing.T) {
	errNotFound := errors.New("no rows")
	b := newBreaker(t, guard.Options{IsFailure: func(err error) bool { return !errors.Is(err, errNotFound) }})
	for range 1000 {
		if err := b.Do(t.Context(), func(context.Context) error { return errNotFound }); err != errNotFound {
			t.Fatalf("got %v, want %v", err, errNotFound)
		}
	}
	if s := b.Stats(); s.State != guard.Closed || s.Successes != 1000 {
		t.Errorf("got %+v, want closed and 1000 successes", s)
	}
}

// Catches a verdict "excluded" for an error that IsFailure clears: the ratio is then
// that of the failures alone, and a half-open breaker does not close.
func TestNotFoundCountsForTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errNotFound := errors.New("no rows")
		notFound := func(context.Context) error { return errNotFound }
		b := newBreaker(t, guard.Options{IsFailure: func(err error) bool { return err != errNotFound }})
		for i := range 1000 {
			load := notFound
			if i%5 == 0 {
				load = fail
			}
			if err := b.Do(t.Context(), load); errors.Is(err, guard.ErrOpen) {
				t.Fatalf("refused at call %d of which a fifth fails", i)
			}
		}
		trip(t, b)
		time.Sleep(6 * time.Second)
		if err := b.Do(t.Context(), notFound); err != errNotFound || b.State() != guard.Closed {
			t.Errorf("the call that tries: got %v and %v, want %v and closed", err, b.State(), errNotFound)
		}
	})
}

func TestANegativeRatioNeverOpens(t *testing.T) {
	b := newBreaker(t, guard.Options{FailureRatio: -1})
	for range 1000 {
		if err := b.Do(t.Context(), fail); err != errSource {
			t.Fatalf("got %v, want %v", err, errSource)
		}
	}
}

func TestOpenRefusesHalfOpenTriesOneAndASuccessCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{Cooldown: 5 * time.Second})
		trip(t, b)
		time.Sleep(3900 * time.Millisecond)
		if err := b.Do(t.Context(), succeed); !errors.Is(err, guard.ErrOpen) {
			t.Errorf("after 3.9s: got %v, want ErrOpen", err)
		}
		time.Sleep(2200 * time.Millisecond)

		inside, release := make(chan struct{}), make(chan struct{})
		go func() {
			_ = b.Do(t.Context(), func(context.Context) error { close(inside); <-release; return nil })
		}()
		<-inside
		for range 10 {
			if err := b.Do(t.Context(), succeed); !errors.Is(err, guard.ErrOpen) {
				t.Errorf("beside the call that tries: got %v, want ErrOpen", err)
			}
		}
		if b.State() != guard.HalfOpen {
			t.Errorf("got %v, want half-open", b.State())
		}
		close(release)
		synctest.Wait()
		if b.State() != guard.Closed {
			t.Errorf("got %v, want closed", b.State())
		}
	})
}

// After a Goexit or a hang of the call that tries, gobreaker alone stays half-open
// and refuses everything (measured: 40 of 40 healthy calls). So does this breaker if
// the function's goroutine gives the verdict.
func TestNothingThatTheTryingCallDoesWedgesIt(t *testing.T) {
	for name, try := range map[string]func(context.Context) error{
		"error":  fail,
		"panic":  func(context.Context) error { panic("boom") },
		"Goexit": func(context.Context) error { runtime.Goexit(); return nil },
		"hang":   func(context.Context) error { select {} },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "hang" { // longer than any timeout; a bubble has to end
				try = func(context.Context) error { time.Sleep(time.Hour); return nil }
			}
			synctest.Test(t, func(t *testing.T) {
				b := newBreaker(t, guard.Options{})
				trip(t, b)
				time.Sleep(6 * time.Second)
				_ = b.Do(t.Context(), try)
				if b.State() != guard.Open {
					t.Fatalf("got %v, want open again", b.State())
				}
				time.Sleep(6 * time.Second)
				if err := b.Do(t.Context(), succeed); err != nil {
					t.Errorf("the next healthy call got %v, want nil", err)
				}
				if b.State() != guard.Closed {
					t.Errorf("got %v, want closed", b.State())
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

// If a leaving caller counted as a success, it would close the breaker while the
// source is dead. If it gave no verdict at all, no other call could try.
func TestACallerThatLeavesWhileItTriesNeitherClosesNorWedgesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{})
		trip(t, b)
		time.Sleep(6 * time.Second)
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if err := b.Do(ctx, func(context.Context) error { time.Sleep(time.Second); return nil }); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got %v, want the deadline", err)
			}
			cancel()
			if b.State() != guard.HalfOpen {
				t.Fatalf("got %v, want half-open", b.State())
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err := b.Do(t.Context(), succeed); err != nil || b.State() != guard.Closed {
			t.Errorf("got %v and %v, want nil and closed", err, b.State())
		}
		time.Sleep(time.Second)
	})
}

// Catches a breaker that gives every verdict to the present state: calls that began
// before the opening would close it while it is open or half-open.
func TestLateResultsChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := make(chan guard.State, 10)
		b := newBreaker(t, guard.Options{Timeout: -1, Cooldown: 5 * time.Second, OnStateChange: func(_, to guard.State) { changes <- to }})
		for i := range 12 {
			go func() {
				_ = b.Do(t.Context(), func(context.Context) error { time.Sleep(time.Duration(i+1) * 550 * time.Millisecond); return nil })
			}()
		}
		synctest.Wait()
		trip(t, b)
		if to := <-changes; to != guard.Open {
			t.Fatalf("got %v, want open", to)
		}
		time.Sleep(3900 * time.Millisecond)
		if len(changes) > 0 {
			t.Errorf("changed to %v during the cooldown", <-changes)
		}
		time.Sleep(2200 * time.Millisecond) // after the cooldown, two calls come late
		if b.State() != guard.HalfOpen {
			t.Errorf("got %v, want half-open: a late success does not close it", b.State())
		}
		time.Sleep(time.Hour)
	})
}

// gobreaker's own cooldown is the same everywhere: all instances of a fleet that
// opened together would try together, and again after each failure.
// gobreaker takes an open time of 0 for a minute.
// Catches an open breaker that asks gobreaker about every call: whoever holds its
// mutex would delay all refusals.
// A source that fails and recovers every second must not make the breaker flap.
