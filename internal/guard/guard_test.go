package guard_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/guard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errSource = errors.New("source is down")

func succeed(context.Context) error { return nil }
func fail(context.Context) error    { return errSource }

// obey returns when its context ends, as a well-behaved driver does.
func obey(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func newBreaker(t testing.TB, o guard.Options) *guard.Breaker {
	t.Helper()
	b, err := guard.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// trip opens b with failures that take no time.
func trip(t testing.TB, b *guard.Breaker) {
	t.Helper()
	for range 1000 {
		if errors.Is(b.Do(t.Context(), fail), guard.ErrOpen) {
			return
		}
	}
	t.Fatal("1000 failures in a row did not open the breaker")
}

// conserved checks that every one of calls came to exactly one end.
func conserved(t testing.TB, b *guard.Breaker, calls int) {
	t.Helper()
	s := b.Stats()
	if sum := s.Successes + s.Failures + s.Excluded + s.RefusedOpen + s.RefusedLimited + s.Left; sum != uint64(calls) {
		t.Errorf("%d calls, but their ends sum up to %d: %+v", calls, sum, s)
	}
}

func TestDoReturnsWhatTheFunctionReturns(t *testing.T) {
	b := newBreaker(t, guard.Options{})
	if err := b.Do(t.Context(), succeed); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	if err := b.Do(t.Context(), fail); err != errSource {
		t.Errorf("got %v, want %v", err, errSource)
	}
	if s := b.Stats(); s.Successes != 1 || s.Failures != 1 || s.Running != 0 {
		t.Errorf("got %+v, want one success and one failure", s)
	}
}

func TestTheFunctionSeesTheValuesAndTheEndOfItsCallersContext(t *testing.T) {
	type key struct{}
	b := newBreaker(t, guard.Options{})
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, 7))
	err := b.Do(ctx, func(ctx context.Context) error {
		if ctx.Value(key{}) != 7 {
			t.Error("the value is missing")
		}
		cancel(io.EOF)
		return obey(ctx)
	})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the cancellation and its cause", err)
	}
}

// Without the recover and the Goexit detection inside the function's goroutine
// the process dies or the caller never returns.
func TestPanicAndGoexitComeBackAsErrorsAndCountAsFailures(t *testing.T) {
	b := newBreaker(t, guard.Options{IsFailure: func(error) bool { return false }})

	err := b.Do(t.Context(), func(context.Context) error { panic(io.EOF) })
	var panicked *contain.PanicError
	if !errors.As(err, &panicked) || !errors.Is(err, io.EOF) || len(panicked.Stack) == 0 {
		t.Errorf("got %v, want a PanicError with a stack", err)
	}
	panicked, err = nil, b.Do(t.Context(), func(context.Context) error { runtime.Goexit(); return nil })
	if !errors.As(err, &panicked) || !strings.Contains(err.Error(), "runtime.Goexit") {
		t.Errorf("got %v, want a PanicError of runtime.Goexit", err)
	}
	if s := b.Stats(); s.Failures != 2 || s.Running != 0 {
		t.Errorf("got %+v, want two failures and nothing running", s)
	}
}

func TestAPanicOfIsFailureIsContained(t *testing.T) {
	b := newBreaker(t, guard.Options{IsFailure: func(error) bool { panic("boom") }})
	var panicked *contain.PanicError
	if err := b.Do(t.Context(), fail); !errors.As(err, &panicked) {
		t.Errorf("got %v, want a PanicError", err)
	}
	if s := b.Stats(); s.Failures != 1 || s.Running != 0 {
		t.Errorf("got %+v, want one failure and nothing running", s)
	}
}

func TestTimeoutEndsACallOfAFunctionThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{Name: "catalogue", Timeout: time.Second})
		release := make(chan struct{})
		begin := time.Now()
		err := b.Do(t.Context(), func(context.Context) error { <-release; return nil })
		if !errors.Is(err, guard.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want ErrTimeout and not the error of a caller's deadline", err)
		}
		if want := "breaker: call timed out after 1s: catalogue"; err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("Do took %v, want 1s", took)
		}
		if s := b.Stats(); s.Failures != 1 || s.Timeouts != 1 || s.Stuck != 1 || s.Running != 1 {
			t.Errorf("got %+v, want one timeout, still running and stuck", s)
		}
		close(release)
		synctest.Wait()
		if s := b.Stats(); s.Successes != 0 || s.Failures != 1 || s.Stuck != 0 || s.Running != 0 {
			t.Errorf("got %+v: the late end must free the place and change no verdict", s)
		}
	})
}

func TestTimeoutIsAFailureWhateverTheFunctionMakesOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{IsFailure: func(error) bool { return false }})
		err := b.Do(t.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, guard.ErrTimeout) {
				t.Errorf("the function sees %v, want ErrTimeout", cause)
			}
			return io.EOF
		})
		if !errors.Is(err, guard.ErrTimeout) {
			t.Errorf("got %v, want ErrTimeout", err)
		}
		if s := b.Stats(); s.Timeouts != 1 || s.Failures != 1 {
			t.Errorf("got %+v, want one timeout", s)
		}
	})
}

// Each Breaker's timeout has its own cause. With ErrTimeout itself as the cause, the
// inner breaker takes the end of its caller's context for its own timeout.
func TestAnOuterBreakersTimeoutIsItsCallersEndToTheInnerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := newBreaker(t, guard.Options{Timeout: time.Second})
		inner := newBreaker(t, guard.Options{})
		err := outer.Do(t.Context(), func(ctx context.Context) error { return inner.Do(ctx, obey) })
		if !errors.Is(err, guard.ErrTimeout) {
			t.Errorf("got %v, want ErrTimeout", err)
		}
		synctest.Wait()
		if s := inner.Stats(); s.Timeouts != 0 || s.Excluded != 1 {
			t.Errorf("inner: got %+v, want one excluded call", s)
		}
	})
}

// Catches a place that is given back when the call ends, not when its function
// does: the source would get more than MaxConcurrent calls at a time.
func TestAStuckFunctionKeepsItsPlaceUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 8, Timeout: time.Second, FailureRatio: -1})
		release := make(chan struct{})
		var calls sync.WaitGroup
		for range 8 {
			calls.Go(func() {
				err := b.Do(t.Context(), func(context.Context) error { <-release; return nil })
				if !errors.Is(err, guard.ErrTimeout) {
					t.Errorf("got %v, want ErrTimeout", err)
				}
			})
		}
		calls.Wait()
		if s := b.Stats(); s.Stuck != 8 {
			t.Errorf("got %+v, want 8 stuck", s)
		}
		if err := b.Do(t.Context(), succeed); !errors.Is(err, guard.ErrLimited) {
			t.Errorf("got %v, want ErrLimited: eight functions still run", err)
		}
		close(release)
		synctest.Wait()
		if err := b.Do(t.Context(), succeed); err != nil {
			t.Errorf("got %v, want nil: the eight have ended", err)
		}
		conserved(t, b, 10)
	})
}

// Catches a timeout whose cancel is dropped: its timer, and all that the context
// refers to, would stay until Timeout has passed.
func TestTheFunctionsContextEndsWhenDoReturns(t *testing.T) {
	b := newBreaker(t, guard.Options{Timeout: time.Hour, Window: 2 * time.Hour})
	var inside context.Context
	if err := b.Do(t.Context(), func(ctx context.Context) error { inside = ctx; return ctx.Err() }); err != nil {
		t.Fatal(err)
	}
	if inside.Err() == nil {
		t.Error("the context of a function that has returned still lives")
	}
}

// Counted as failures, as gobreaker does by default, seven of these would open it.
func TestCallersThatLeaveDoNotCount(t *testing.T) {
	for name, leave := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"cancelled": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Millisecond, cancel)
			return ctx, cancel
		},
		"own deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBreaker(t, guard.Options{})
				const calls = 10_000
				for i := range calls {
					ctx, cancel := leave(t.Context())
					err := b.Do(ctx, func(ctx context.Context) error {
						<-ctx.Done()
						if i%2 == 0 {
							return io.ErrUnexpectedEOF // a driver's own idea of a query cut short
						}
						return ctx.Err()
					})
					if !errors.Is(err, ctx.Err()) {
						t.Fatalf("got %v, want the error of the caller's context", err)
					}
					cancel()
				}
				if s := b.Stats(); s.State != guard.Closed || s.Excluded != calls || s.Failures != 0 {
					t.Errorf("got %+v, want closed and %d excluded", s, calls)
				}
			})
		})
	}
}

func TestAContextThatHasEndedStartsNothing(t *testing.T) {
	b := newBreaker(t, guard.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := b.Do(ctx, func(context.Context) error { t.Error("the function ran"); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	conserved(t, b, 1)
}

func TestDoReturnsWithItsContextEvenIfTheFunctionHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{Timeout: -1})
		release := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		begin := time.Now()
		err := b.Do(ctx, func(context.Context) error { <-release; return nil })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 100*time.Millisecond {
			t.Errorf("got %v after %v, want the deadline after 100ms", err, time.Since(begin))
		}
		close(release)
	})
}

func TestMaxDurationIsQueueAndTimeout(t *testing.T) {
	for _, test := range []struct {
		o    guard.Options
		want time.Duration
	}{
		{guard.Options{}, 10 * time.Second},
		{guard.Options{QueueTimeout: 200 * time.Millisecond}, 5200 * time.Millisecond},
		{guard.Options{QueueTimeout: -1}, 5 * time.Second},
		{guard.Options{MaxConcurrent: -1, MaxDegraded: -1}, 5 * time.Second},
		{guard.Options{Timeout: -1}, 0},
	} {
		if got := newBreaker(t, test.o).MaxDuration(); got != test.want {
			t.Errorf("%+v: got %v, want %v", test.o, got, test.want)
		}
	}
}

func TestANilBreakerLetsEverythingThroughAndContainsIt(t *testing.T) {
	var b *guard.Breaker
	for range 100 {
		if err := b.Do(t.Context(), fail); err != errSource {
			t.Fatalf("got %v, want %v", err, errSource)
		}
	}
	var panicked *contain.PanicError
	if err := b.DoDegraded(t.Context(), func(context.Context) error { panic("boom") }); !errors.As(err, &panicked) {
		t.Errorf("got %v, want a PanicError", err)
	}
	if b.State() != guard.Closed || b.MaxDuration() != 0 || b.Stats() != (guard.Stats{}) {
		t.Errorf("got %v, %v, %+v, want zeros", b.State(), b.MaxDuration(), b.Stats())
	}
}

// Everything at once, under the race detector: no call is lost, the source never
// sees more than the limit, and nothing is left running.
func TestEveryCallComesToOneEndUnderLoad(t *testing.T) {
	const limit, workers, calls = 8, 200, 100
	b := newBreaker(t, guard.Options{
		MaxConcurrent: limit, MaxDegraded: 4, MaxQueue: 100, QueueTimeout: 5 * time.Millisecond,
		Timeout: 20 * time.Millisecond, Window: 100 * time.Millisecond, Cooldown: 5 * time.Millisecond,
		OnStateChange: func(guard.State, guard.State) {},
	})
	var now, most atomic.Int64
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			do := b.Do
			if w%4 == 0 {
				do = b.DoDegraded
			}
			for i := range calls {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%10)*time.Millisecond)
				_ = do(ctx, func(ctx context.Context) error {
					n := now.Add(1)
					defer now.Add(-1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					switch (w + i) % 8 {
					case 0:
						panic("boom")
					case 1:
						runtime.Goexit()
					case 2:
						return obey(ctx)
					case 3, 4:
						return errSource
					}
					return nil
				})
				cancel()
			}
		})
	}
	group.Wait()
	if most.Load() > limit {
		t.Errorf("%d functions ran at a time, want at most %d", most.Load(), limit)
	}
	for b.Stats().Running > 0 {
		runtime.Gosched() // functions left behind end with their contexts
	}
	if s := b.Stats(); s.Stuck != 0 || s.Waiting != 0 {
		t.Errorf("got %+v, want nothing stuck or waiting", s)
	}
	conserved(t, b, workers*calls)
}
