package breaker_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/breaker"
)

// gauge counts the functions that are at work.
type gauge struct{ now, most atomic.Int64 }

func (g *gauge) work(d time.Duration) {
	n := g.now.Add(1)
	for m := g.most.Load(); n > m && !g.most.CompareAndSwap(m, n); m = g.most.Load() {
	}
	time.Sleep(d)
	g.now.Add(-1)
}

// Each function makes calls of its own Breaker, and those make some in turn. Catches a
// place that is not lent (they wait for each other until they time out) and one that is
// taken back before it is free (more than the limit are at work).
func TestInnerCallsRunInThePlaceOfTheirFunction(t *testing.T) {
	for _, limit := range []int{1, 2, 8, 64} {
		for _, class := range []breaker.Class{breaker.Normal, breaker.Degraded} {
			synctest.Test(t, func(t *testing.T) {
				b := newBreaker(t, breaker.Options{MaxConcurrent: limit, MaxDegraded: limit})
				var g gauge
				var nest func(ctx context.Context, depth int) error
				nest = func(ctx context.Context, depth int) error {
					g.work(time.Millisecond)
					if depth == 0 {
						return nil
					}
					var inner sync.WaitGroup
					for range 3 {
						inner.Go(func() {
							err := b.Run(ctx, breaker.Call{Class: class}, func(ctx context.Context) error { return nest(ctx, depth-1) })
							if err != nil {
								t.Errorf("limit %d: inner: %v", limit, err)
							}
						})
					}
					inner.Wait()
					g.work(time.Millisecond)
					return nil
				}
				var calls sync.WaitGroup
				for range 64 {
					calls.Go(func() {
						if err := b.Do(context.Background(), func(ctx context.Context) error { return nest(ctx, 2) }); err != nil {
							t.Errorf("limit %d: %v", limit, err)
						}
					})
				}
				calls.Wait()
				if g.most.Load() > int64(limit) {
					t.Errorf("limit %d: %d at work", limit, g.most.Load())
				}
				if s := b.Stats(); s.Running != 0 || s.Waiting != 0 || s.Failures != 0 || !b.HasPlace() {
					t.Errorf("limit %d: %+v", limit, s)
				}
			})
		}
	}
}

// A function waits for a call that was made from outside and stands in the queue.
func TestAFunctionLendsItsPlaceToTheCallThatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{MaxConcurrent: 1})
		begin, inner, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var calls sync.WaitGroup
		calls.Go(func() {
			err := b.Do(context.Background(), func(ctx context.Context) error {
				<-begin
				resume := breaker.Pause(ctx)
				defer resume()
				close(inner)
				<-done
				return nil
			})
			if err != nil {
				t.Errorf("outer: %v", err)
			}
		})
		synctest.Wait()
		order := make(chan string, 2)
		calls.Go(func() { _ = b.Do(context.Background(), func(context.Context) error { order <- "outside"; return nil }) })
		synctest.Wait()
		calls.Go(func() {
			err := b.Run(context.Background(), breaker.Call{Inner: inner}, func(context.Context) error { order <- "inner"; close(done); return nil })
			if err != nil {
				t.Errorf("inner: %v", err)
			}
		})
		synctest.Wait()
		close(begin)
		calls.Wait()
		if first := <-order; first != "inner" {
			t.Errorf("%s ran first", first)
		}
	})
}

// A function that ends, or whose context does, while others have its place.
func TestAPauseThatIsNotResumedInOrderLosesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{MaxConcurrent: 1, Timeout: 100 * time.Millisecond, FailureRatio: -1})
		release := make(chan struct{})
		err := b.Do(t.Context(), func(ctx context.Context) error {
			go func() { // goes on after the function
				_ = b.Do(ctx, func(context.Context) error { <-release; return nil })
			}()
			time.Sleep(time.Millisecond)
			resume := breaker.Pause(ctx)
			go breaker.Pause(ctx) // never resumed
			time.Sleep(time.Second)
			resume()
			return nil
		})
		if !errors.Is(err, breaker.ErrTimeout) {
			t.Errorf("got %v", err)
		}
		time.Sleep(2 * time.Second)
		close(release)
		synctest.Wait()
		if s := b.Stats(); s.Running != 0 || !b.HasPlace() {
			t.Errorf("%+v, and a place is free: %v", s, b.HasPlace())
		}
		if err := b.Do(t.Context(), succeed); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// Who waits for a refresh that a function has begun? Nobody: it must not come before
// calls that somebody waits for.
func TestABackgroundCallOfAFunctionIsNoInnerCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{MaxConcurrent: 2})
		release := make(chan struct{})
		occupy(b, 1, release)
		_ = b.Do(t.Context(), func(ctx context.Context) error {
			defer breaker.Pause(ctx)()
			if err := b.DoBackground(context.WithoutCancel(ctx), succeed); !errors.Is(err, breaker.ErrLimited) {
				t.Errorf("got %v, want ErrLimited: both places are taken", err)
			}
			return nil
		})
		close(release)
	})
}

// Functions return while goroutines that they leave behind begin to wait, or end their
// wait. A place was lost for good, or counted as free twice, when such a goroutine came
// between two steps of the end.
func TestAPauseBesideTheEndOfItsFunctionCostsNoPlace(t *testing.T) {
	const limit = 4
	b := newBreaker(t, breaker.Options{MaxConcurrent: limit, QueueTimeout: time.Minute})
	var callers, left sync.WaitGroup
	for range 4 * limit {
		callers.Go(func() {
			for range 500 {
				err := b.Do(t.Context(), func(ctx context.Context) error {
					for range 3 {
						left.Go(func() {
							for range 3 {
								breaker.Pause(ctx)()
							}
						})
					}
					runtime.Gosched()
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	left.Wait()
	// The limit is what it was: so many run at a time, also as inner calls, and no more.
	var g gauge
	err := b.Do(t.Context(), func(ctx context.Context) error {
		var calls sync.WaitGroup
		for range 4 * limit {
			calls.Go(func() {
				if err := b.Do(ctx, func(context.Context) error { g.work(20 * time.Millisecond); return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		return nil
	})
	if most := g.most.Load(); err != nil || most != limit {
		t.Errorf("%d at work at a time, not %d: %v", most, limit, err)
	}
}

// A function of one Breaker that calls another is a caller like any other there.
//
// Catches one that is taken for an inner call of the other: it came before all who called
// directly, and neither MaxQueue nor QueueTimeout held for it. It waited for five seconds.
func TestACallOfAnotherBreakerWaitsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		categories := newBreaker(t, breaker.Options{})
		products := newBreaker(t, breaker.Options{MaxConcurrent: 1, QueueTimeout: 100 * time.Millisecond, MaxQueue: 2})
		nested := func(fn func(ctx context.Context) error) error {
			return categories.Do(context.Background(), func(ctx context.Context) error {
				if categories.Inside(ctx) == products.Inside(ctx) {
					t.Error("the context is not of this one breaker")
				}
				return products.Do(ctx, fn)
			})
		}
		release, order := make(chan struct{}), make(chan string, 3)
		var calls sync.WaitGroup
		calls.Go(func() {
			_ = products.Do(context.Background(), func(context.Context) error { <-release; return nil })
		})
		synctest.Wait()
		calls.Go(func() {
			_ = products.Do(context.Background(), func(context.Context) error { order <- "direct"; return nil })
		})
		synctest.Wait()
		calls.Go(func() { _ = nested(func(context.Context) error { order <- "nested"; return nil }) })
		synctest.Wait()
		if err := nested(func(context.Context) error { return nil }); !errors.Is(err, breaker.ErrLimited) {
			t.Errorf("with a full queue: %v", err)
		}
		close(release)
		calls.Wait()
		if first := <-order; first != "direct" {
			t.Errorf("the %s call ran first", first)
		}

		release = make(chan struct{})
		calls.Go(func() {
			_ = products.Do(context.Background(), func(context.Context) error { <-release; return nil })
		})
		synctest.Wait()
		began := time.Now()
		err := nested(func(context.Context) error { return nil })
		if took := time.Since(began); !errors.Is(err, breaker.ErrLimited) || took > 100*time.Millisecond {
			t.Errorf("it waited for %v, %v", took, err)
		}
		close(release)
		calls.Wait()
	})
}
