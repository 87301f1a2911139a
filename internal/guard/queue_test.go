package guard_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/levee-go/levee/internal/guard"
)

// occupy fills n places of b until release is closed.
func occupy(b *guard.Breaker, n int, release <-chan struct{}) {
	for range n {
		go func() {
			_ = b.Do(context.Background(), func(context.Context) error { <-release; return nil })
		}()
	}
	synctest.Wait()
}

func TestTheQueueIsFirstInFirstOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, QueueTimeout: time.Hour})
		release := make(chan struct{})
		occupy(b, 1, release)
		var order []int
		for i := range 10 {
			go func() {
				_ = b.Do(context.Background(), func(context.Context) error { order = append(order, i); return nil })
			}()
			synctest.Wait()
		}
		if s := b.Stats(); s.Waiting != 10 || s.Running != 1 {
			t.Errorf("got %+v, want 10 waiting", s)
		}
		close(release)
		synctest.Wait()
		for i, n := range order {
			if i != n {
				t.Fatalf("ran in the order %v", order)
			}
		}
		conserved(t, b, 11)
	})
}

func TestWaitingEndsAfterQueueTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, QueueTimeout: 200 * time.Millisecond})
		release := make(chan struct{})
		occupy(b, 1, release)
		begin := time.Now()
		err := b.Do(t.Context(), succeed)
		if !errors.Is(err, guard.ErrLimited) || time.Since(begin) != 200*time.Millisecond {
			t.Errorf("got %v after %v, want ErrLimited after 200ms", err, time.Since(begin))
		}
		close(release)
		synctest.Wait()
		conserved(t, b, 2)
	})
}

func TestWaitingEndsWithTheCallersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1})
		release := make(chan struct{})
		occupy(b, 1, release)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		begin := time.Now()
		err := b.Do(ctx, succeed)
		if !errors.Is(err, guard.ErrLimited) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 50*time.Millisecond {
			t.Errorf("got %v after %v, want ErrLimited and the deadline after 50ms", err, time.Since(begin))
		}
		close(release)
		synctest.Wait()
		if s := b.Stats(); s.Left != 1 {
			t.Errorf("got %+v, want one that left", s)
		}
		conserved(t, b, 2)
	})
}

func TestANegativeQueueTimeoutDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, QueueTimeout: -1})
		release := make(chan struct{})
		occupy(b, 1, release)
		begin := time.Now()
		if err := b.Do(t.Context(), succeed); !errors.Is(err, guard.ErrLimited) || time.Since(begin) != 0 {
			t.Errorf("got %v after %v, want ErrLimited at once", err, time.Since(begin))
		}
		close(release)
	})
}

// Without a bound on its length, an outage fills memory with callers that are all
// refused in the end.
func TestAFullQueueRefusesTheNewestAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, MaxQueue: 5, QueueTimeout: time.Hour})
		release := make(chan struct{})
		occupy(b, 1, release)
		occupy(b, 5, release)
		begin := time.Now()
		if err := b.Do(t.Context(), succeed); !errors.Is(err, guard.ErrLimited) || time.Since(begin) != 0 {
			t.Errorf("got %v after %v, want ErrLimited at once", err, time.Since(begin))
		}
		if s := b.Stats(); s.Waiting != 5 {
			t.Errorf("got %+v, want 5 waiting", s)
		}
		close(release)
		synctest.Wait()
		if s := b.Stats(); s.Successes != 6 || s.RefusedLimited != 1 {
			t.Errorf("got %+v, want 6 successes and 1 refused", s)
		}
	})
}

// Catches a queue that does not hear of the opening: its callers would wait until
// QueueTimeout for a source that is known to be down.
func TestTheQueueEmptiesWhenTheBreakerOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 40, MinRequests: 20, Timeout: time.Second, QueueTimeout: time.Hour, MaxQueue: 2000})
		release := make(chan struct{})
		occupy(b, 40, release) // they do not obey: their places stay taken
		begin := time.Now()
		var waiters sync.WaitGroup
		for i := range 1000 {
			waiters.Go(func() {
				do := b.Do
				if i%2 == 0 {
					do = b.DoDegraded
				}
				if err := do(t.Context(), succeed); err != guard.ErrOpen {
					t.Errorf("got %v, want ErrOpen", err)
				}
			})
		}
		waiters.Wait() // the 40 run into their timeouts
		if took := time.Since(begin); took != time.Second {
			t.Errorf("waited for %v, want 1s", took)
		}
		close(release)
		synctest.Wait()
		if s := b.Stats(); s.Running != 0 || s.Waiting != 0 {
			t.Errorf("got %+v, want nothing running or waiting", s)
		}
		conserved(t, b, 1040)
	})
}

// Catches a breaker that is asked only after the queue: its callers would wait for
// nothing.
func TestAnOpenBreakerRefusesBeforeTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 20})
		release := make(chan struct{})
		occupy(b, 20, release)
		time.Sleep(5*time.Second + time.Millisecond) // all have failed and still run
		begin := time.Now()
		if err := b.Do(t.Context(), succeed); err != guard.ErrOpen || time.Since(begin) != 0 {
			t.Errorf("got %v after %v, want ErrOpen at once", err, time.Since(begin))
		}
		close(release)
	})
}

// A place comes free as the breaker opens. Catches a breaker that is not asked again
// after the queue.
func TestNoCallPassesFromTheQueueAfterTheOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, MinRequests: 1, FailureRatio: 1, QueueTimeout: time.Hour})
		release := make(chan struct{})
		go func() {
			_ = b.Do(context.Background(), func(context.Context) error { <-release; return errSource })
		}()
		synctest.Wait()
		var waiters sync.WaitGroup
		ran := 0 // by the one place it is guarded
		for range 100 {
			waiters.Go(func() {
				_ = b.Do(context.Background(), func(context.Context) error { ran++; return errSource })
			})
		}
		synctest.Wait()
		close(release)
		waiters.Wait()
		if ran > 0 {
			t.Errorf("%d calls passed after the failure that opened it", ran)
		}
		conserved(t, b, 101)
	})
}

// Catches a place that is given back before the verdict: the next call from the
// queue would pass a breaker that is about to open.
func TestNoPlaceComesFreeBeforeTheVerdict(t *testing.T) {
	for name, fn := range map[string]func(context.Context) error{
		"a failure":                 fail,
		"a function left behind":    func(context.Context) error { time.Sleep(2 * time.Second); return nil },
		"a function that is timely": obey,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBreaker(t, guard.Options{MaxConcurrent: 1, MinRequests: 1, Timeout: time.Second})
				opened := false
				b.AtOpening(func() {
					opened = true
					time.Sleep(time.Hour) // the function is over by then
					if b.HasPlace() {
						t.Error("its place is free while its verdict is being given")
					}
				})
				_ = b.Do(t.Context(), fn)
				synctest.Wait()
				if !opened || !b.HasPlace() {
					t.Errorf("opened: %v, and then a place is free: %v; want both", opened, b.HasPlace())
				}
			})
		})
	}
}

// Catches a queue before a breaker that is half-open, and one that does not come
// back when the breaker closes.
func TestOnlyAClosedBreakerHasAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, QueueTimeout: time.Second})
		for range 3 {
			trip(t, b)
			time.Sleep(6 * time.Second)
			go func() {
				_ = b.Do(context.Background(), func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil })
			}()
			synctest.Wait()
			begin := time.Now()
			if err := b.Do(t.Context(), succeed); err != guard.ErrOpen || time.Since(begin) != 0 {
				t.Errorf("beside the call that tries: got %v after %v, want ErrOpen at once", err, time.Since(begin))
			}
			time.Sleep(time.Second)

			go func() {
				_ = b.Do(context.Background(), func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil })
			}()
			synctest.Wait()
			begin = time.Now()
			if err := b.Do(t.Context(), succeed); err != nil || time.Since(begin) != 100*time.Millisecond {
				t.Errorf("closed again: got %v after %v, want nil after 100ms", err, time.Since(begin))
			}
		}
	})
}

// Catches a refusal behind the limits that keeps its places: two of these calls
// would take what is left.
func TestARefusedCallGivesItsPlacesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 3, MaxDegraded: 1, MaxBackground: 1, QueueTimeout: -1})
		trip(t, b)
		time.Sleep(6 * time.Second)
		release := make(chan struct{})
		occupy(b, 1, release) // the call that tries
		for range 10 {
			for name, do := range map[string]func(context.Context, func(context.Context) error) error{
				"Do": b.Do, "DoDegraded": b.DoDegraded, "DoBackground": b.DoBackground,
			} {
				if err := do(t.Context(), succeed); err != guard.ErrOpen {
					t.Errorf("%s beside the call that tries: got %v, want ErrOpen", name, err)
				}
			}
		}
		close(release)
		synctest.Wait()

		release = make(chan struct{})
		occupy(b, 2, release)
		for name, do := range map[string]func(context.Context, func(context.Context) error) error{
			"Do": b.Do, "DoDegraded": b.DoDegraded, "DoBackground": b.DoBackground,
		} {
			if err := do(t.Context(), succeed); err != nil {
				t.Errorf("%s for the third place: got %v, want nil", name, err)
			}
		}
		close(release)
	})
}

// The opening ends the waiting, so the circuit refers to each call that waits.
// Catches a call that is still referred to after it has gone: a breaker that does
// not open for months would keep the contexts of all calls that ever queued.
func TestACallThatQueuedLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1})
		release := make(chan struct{})
		occupy(b, 1, release)
		type key struct{}
		value := new([1 << 10]byte)
		gone := weak.Make(value)
		if err := b.Do(context.WithValue(t.Context(), key{}, value), succeed); !errors.Is(err, guard.ErrLimited) {
			t.Errorf("got %v, want ErrLimited", err)
		}
		runtime.KeepAlive(value)
		runtime.GC()
		if gone.Value() != nil {
			t.Error("something still refers to the context of a call that has returned")
		}
		close(release)
	})
}

func TestNegativeLimitsAreNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: -1, MaxDegraded: -1})
		release := make(chan struct{})
		for range 500 {
			go func() {
				_ = b.DoDegraded(context.Background(), func(context.Context) error { <-release; return nil })
			}()
		}
		synctest.Wait()
		if s := b.Stats(); s.Running != 500 {
			t.Errorf("%d running, want 500", s.Running)
		}
		close(release)
	})
}

// Catches a background call that waits for a place when others hold them all.
// Catches background calls that may take all places: calls that somebody waits for
// would wait behind them.
