package guard_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/guard"
)

// gauge counts the functions that are at work.
type gauge struct{ now, most atomic.Int64 }

func (g *gauge) begin() {
	n := g.now.Add(1)
	for m := g.most.Load(); n > m && !g.most.CompareAndSwap(m, n); m = g.most.Load() {
	}
}

func (g *gauge) end() { g.now.Add(-1) }

func (g *gauge) work(d time.Duration) {
	g.begin()
	defer g.end()
	time.Sleep(d)
}

// Each function makes calls of its own Breaker, and those make some in turn. Catches a nested
// call that waits for a place: with a limit of one all would time out. The functions that
// were called from outside are within the limit, and each has three calls beside it that
// have three.
func TestNestedCallsRunInThePlaceOfTheirFunction(t *testing.T) {
	for _, limit := range []int{1, 2, 8, 64} {
		for _, class := range []guard.Class{guard.Normal, guard.Degraded} {
			synctest.Test(t, func(t *testing.T) {
				b := newBreaker(t, guard.Options{MaxConcurrent: limit, MaxDegraded: limit})
				var outer, g gauge
				var nest func(ctx context.Context, depth int) error
				nest = func(ctx context.Context, depth int) error {
					g.work(time.Millisecond)
					if depth == 0 {
						return nil
					}
					var inner sync.WaitGroup
					for range 3 {
						inner.Go(func() {
							if !b.Inside(ctx) {
								t.Error("the context is not that of a function")
							}
							p, err := b.Acquire(ctx, class)
							if err == nil {
								err = p.Run(ctx, func(ctx context.Context) error { return nest(ctx, depth-1) })
							}
							if err != nil {
								t.Errorf("limit %d: nested: %v", limit, err)
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
						err := b.Do(context.Background(), func(ctx context.Context) error {
							outer.begin()
							defer outer.end()
							return nest(ctx, 2)
						})
						if err != nil {
							t.Errorf("limit %d: %v", limit, err)
						}
					})
				}
				calls.Wait()
				if outer.most.Load() != int64(limit) || g.most.Load() > 9*int64(limit) {
					t.Errorf("limit %d: %d functions, %d at work", limit, outer.most.Load(), g.most.Load())
				}
				if s := b.Stats(); s.Running != 0 || s.Waiting != 0 || s.Failures != 0 || s.Successes != 64*13 || !b.HasPlace() {
					t.Errorf("limit %d: %+v", limit, s)
				}
			})
		}
	}
}

// A function works for most of its Timeout, and then makes calls with its own context. Catches calls that
// count as timeouts of their own, though they ran for a tenth of a second: one slow function counted as eleven
// failures.
func TestANestedCallThatEndsWithItsFunctionIsNoTimeoutOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{})
		err := b.Do(t.Context(), func(ctx context.Context) error {
			time.Sleep(4900 * time.Millisecond)
			for range 10 {
				go func() {
					if err := b.Do(ctx, obey); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, guard.ErrTimeout) {
						t.Errorf("nested: got %v, want the end of its context and the cause", err)
					}
				}()
			}
			return obey(ctx)
		})
		synctest.Wait()
		if s := b.Stats(); !errors.Is(err, guard.ErrTimeout) || s.Failures != 1 || s.Timeouts != 1 || s.Excluded != 10 {
			t.Errorf("got %v, and %+v", err, s)
		}
	})
}

// A function makes a call with a context that does not end with its own. Catches a timeout that is taken
// for that of the function.
func TestANestedCallThatOutlivesItsFunctionTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{})
		_ = b.Do(t.Context(), func(ctx context.Context) error {
			time.Sleep(time.Second)
			err := b.Do(context.WithoutCancel(ctx), obey)
			if !errors.Is(err, guard.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("nested: got %v, want ErrTimeout", err)
			}
			return err
		})
		synctest.Wait()
		time.Sleep(2 * time.Second)
		if s := b.Stats(); s.Timeouts != 2 || s.Excluded != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A goroutine that a function leaves behind calls on. Catches a call that takes the place of
// a function that has returned: nothing would bound such calls.
func TestACallOfAFunctionThatHasReturnedIsLikeAnyOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, QueueTimeout: -1})
		var left context.Context
		_ = b.Do(t.Context(), func(ctx context.Context) error { left = context.WithoutCancel(ctx); return nil })
		release := make(chan struct{})
		occupy(b, 1, release)
		if err := b.Do(left, succeed); !errors.Is(err, guard.ErrLimited) || b.Inside(left) {
			t.Errorf("got %v, and it counts as inside: %v", err, b.Inside(left))
		}
		close(release)
	})
}

// A nested call whose function has returned meanwhile. Catches one that gives the place of
// its function back: there would be two.
func TestANestedCallThatOutlivesItsFunctionFreesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, QueueTimeout: -1})
		release := make(chan struct{})
		_ = b.Do(t.Context(), func(ctx context.Context) error {
			go func() {
				_ = b.Do(context.WithoutCancel(ctx), func(context.Context) error { <-release; return nil })
			}()
			time.Sleep(time.Millisecond)
			return nil
		})
		second := make(chan struct{})
		occupy(b, 1, second)
		close(release)
		synctest.Wait()
		if b.HasPlace() {
			t.Error("the place of a function that runs is free")
		}
		close(second)
	})
}

// Who waits for a refresh that a function has begun? Nobody: it must not come before
// calls that somebody waits for.
func TestABackgroundCallOfAFunctionIsNoNestedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 2})
		release := make(chan struct{})
		occupy(b, 1, release)
		_ = b.Do(t.Context(), func(ctx context.Context) error {
			if err := b.DoBackground(context.WithoutCancel(ctx), succeed); !errors.Is(err, guard.ErrLimited) {
				t.Errorf("got %v, want ErrLimited: both places are taken", err)
			}
			return nil
		})
		close(release)
	})
}

// A function of one Breaker that calls another is a caller like any other there.
//
// Catches one that is taken for a nested call: it came before all who called
// directly, and neither MaxQueue nor QueueTimeout held for it. It waited for five seconds.
func TestACallOfAnotherBreakerWaitsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		categories := newBreaker(t, guard.Options{})
		products := newBreaker(t, guard.Options{MaxConcurrent: 1, QueueTimeout: 100 * time.Millisecond, MaxQueue: 2})
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
		if err := nested(func(context.Context) error { return nil }); !errors.Is(err, guard.ErrLimited) {
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
		if took := time.Since(began); !errors.Is(err, guard.ErrLimited) || took > 100*time.Millisecond {
			t.Errorf("it waited for %v, %v", took, err)
		}
		close(release)
		calls.Wait()
	})
}

// The loaders of products read categories, and those of categories read products, each with a
// Breaker of its own. Catches calls that wait for ever.
func TestCallsOfTwoBreakersThatWaitForEachOtherEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		products, categories := newBreaker(t, guard.Options{MaxConcurrent: 1}), newBreaker(t, guard.Options{MaxConcurrent: 1})
		began := time.Now()
		var calls sync.WaitGroup
		for one, other := range map[*guard.Breaker]*guard.Breaker{products: categories, categories: products} {
			calls.Go(func() {
				_ = one.Do(context.Background(), func(ctx context.Context) error {
					time.Sleep(time.Millisecond) // both have their places
					return other.Do(ctx, succeed)
				})
			})
		}
		calls.Wait()
		took := time.Since(began)
		synctest.Wait()
		if took > 5*time.Second || !products.HasPlace() || !categories.HasPlace() {
			t.Errorf("they took %v, want Timeout at most; places are free: %v, %v", took, products.HasPlace(), categories.HasPlace())
		}
		if err := errors.Join(products.Do(t.Context(), succeed), categories.Do(t.Context(), succeed)); err != nil {
			t.Errorf("the next calls: %v", err)
		}
	})
}

// The function of the call that tries needs calls of its own Breaker, and they calls of theirs.
// Catches a nested call that is refused as one beside the call that tries: such functions never
// closed a Breaker. A nested call's own failure is its function's to judge.
func TestTheCallThatTriesMayMakeNestedCalls(t *testing.T) {
	for name, inner := range map[string]func(context.Context) error{"which succeed": succeed, "which fail": fail} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, other := newBreaker(t, guard.Options{}), newBreaker(t, guard.Options{})
				trip(t, b)
				time.Sleep(7 * time.Second)
				ran, want := 0, inner(t.Context())
				nest := func(fn func(context.Context) error) func(context.Context) error {
					return func(ctx context.Context) error {
						for range 2 {
							if err := b.Do(ctx, fn); !errors.Is(err, want) {
								t.Errorf("nested: got %v, want %v", err, want)
							}
							ran++
						}
						if err := b.Do(t.Context(), succeed); !errors.Is(err, guard.ErrOpen) {
							t.Errorf("beside it: got %v, want ErrOpen", err)
						}
						return want
					}
				}
				err := b.Do(t.Context(), func(ctx context.Context) error {
					_ = nest(nest(inner))(ctx)
					_ = other.Do(ctx, nest(inner))
					if b.State() != guard.HalfOpen {
						t.Errorf("got %v before the call that tries has ended, want half-open", b.State())
					}
					return nil
				})
				if err != nil || ran != 8 || b.State() != guard.Closed {
					t.Errorf("got %v after %d nested calls, and it is %v", err, ran, b.State())
				}
			})
		})
	}
}

// The call that tries has failed, and its function goes on. Catches a function whose nested
// calls run as long as it does: they would reach a source that is not to be called.
func TestNestedCallsEndWithTheVerdictOnTheCallThatTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{Timeout: time.Second})
		trip(t, b)
		time.Sleep(7 * time.Second)
		nested := make(chan error, 2)
		_ = b.Do(t.Context(), func(ctx context.Context) error {
			time.Sleep(2 * time.Second) // its caller got ErrTimeout
			nested <- b.Do(context.WithoutCancel(ctx), succeed)
			time.Sleep(5 * time.Second) // half-open again
			release := make(chan struct{})
			occupy(b, 1, release)
			nested <- b.Do(context.WithoutCancel(ctx), succeed)
			close(release)
			return nil
		})
		for range 2 {
			if err := <-nested; !errors.Is(err, guard.ErrOpen) {
				t.Errorf("got %v, want ErrOpen", err)
			}
		}
	})
}

// Work that functions share, such as a flight, may outlive the function that began it. Catches
// a nested call of such work that waits for a place: those who hold the places wait for it.
func TestWorkThatIsKeptStaysNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, QueueTimeout: -1})
		var kept context.Context
		_ = b.Do(t.Context(), func(ctx context.Context) error { kept = b.Keep(context.WithoutCancel(ctx)); return nil })
		release := make(chan struct{})
		occupy(b, 1, release)
		if err := b.Do(kept, succeed); err != nil || !b.Inside(kept) {
			t.Errorf("got %v, and it counts as inside: %v", err, b.Inside(kept))
		}
		if outside := b.Keep(t.Context()); outside != t.Context() || b.Inside(outside) {
			t.Error("what is outside is kept inside")
		}
		b.Unkeep(t.Context())
		if b.Unkeep(kept); b.Inside(kept) {
			t.Error("it is inside after the end of the work")
		}
		close(release)
	})
}
