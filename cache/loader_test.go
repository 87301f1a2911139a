package cache_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// unheld lets each Get meet the loader anew after an error.
func unheld(o *cache.Options) { o.Rebuild.ErrorHold = -1 }

// A panic must reach everybody who waits, with the place where it happened, and
// leave neither lease nor flight nor permit behind.
func TestALoadersPanicFailsThoseWhoWaitAndNothingElse(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source, gate := newRows(r, 1, 2), newLatch()
		source.slowly(func(ctx context.Context, key int64) error {
			if key == 1 {
				_ = gate.wait(ctx, key)
				panic("bug in the loader")
			}
			return nil
		})
		c := open(r, source.source(), unheld)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				_, err := c.Get(r.ctx, 1)
				var panicked *cache.PanicError
				if !errors.As(err, &panicked) || panicked.Value != "bug in the loader" || errors.Is(err, cache.ErrNotFound) {
					r.Errorf("Get: %v", err)
					return
				}
				if !strings.Contains(string(panicked.Stack), "loader_test.go") {
					r.Errorf("the stack does not show the loader:\n%s", panicked.Stack)
				}
			})
		}
		r.eventually("all are in", func() bool { return c.Stats().Gets == 50 })
		c.gives(r, 2, "v1")
		close(gate.open)
		wg.Wait()

		began := time.Now()
		source.slowly(nil)
		c.gives(r, 1, "v1")
		if took := time.Since(began); took > 2*time.Second { // a lease left behind lasts 3 s
			r.Errorf("the next Get took %v", took)
		}
		if s := c.Stats(); s.Breaker.Running != 0 || s.Breaker.Failures == 0 && r.breaker {
			r.Errorf("%+v", s.Breaker)
		}
	})
}

// As a t.FailNow in a test of the user's does, or a web framework's abort.
func TestALoadersGoexitIsAnError(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r, 1)
		source.slowly(func(context.Context, int64) error { runtime.Goexit(); return nil })
		c := open(r, source.source(), unheld)
		for range 3 {
			var panicked *cache.PanicError
			if _, err := c.Get(r.ctx, 1); !errors.As(err, &panicked) || !strings.Contains(err.Error(), "runtime.Goexit") {
				r.Errorf("Get: %v", err)
			}
		}
		source.slowly(nil)
		c.gives(r, 1, "v1")
	})
}

// A panic of what the loader's results go through is the loader's as well.
func TestPanicsOfTheUsersFunctionsAreContained(t *testing.T) {
	bug := func() { panic("bug") }
	for name, test := range map[string]struct {
		source  func(*cache.Source[int64, string])
		options func(*cache.Options)
	}{
		"TTL": {source: func(s *cache.Source[int64, string]) {
			s.TTL = func(int64, string) time.Duration { bug(); return 0 }
		}},
		"LoadMany": {source: func(s *cache.Source[int64, string]) {
			s.Load, s.LoadMany = nil, func(context.Context, []int64) (map[int64]string, error) { bug(); return nil, nil }
		}},
		"IsNotFound": {
			source: func(s *cache.Source[int64, string]) {
				s.Load = func(context.Context, int64) (string, error) { return "", errors.New("?") }
			},
			options: func(o *cache.Options) { o.IsNotFound = func(error) bool { bug(); return false } },
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, fewCells, func(r *rig) {
				src := newRows(r, 1).source()
				test.source(&src)
				c := open(r, src, func(o *cache.Options) {
					if test.options != nil {
						test.options(o)
					}
				})
				var panicked *cache.PanicError
				if _, err := c.Get(r.ctx, 1); !errors.As(err, &panicked) || panicked.Value != "bug" {
					r.Errorf("Get: %v", err)
				}
			})
		})
	}
}

// A loader that hangs costs its callers what they are willing to wait, and the
// source one place until it comes back.
func TestALoaderThatHangsIsLeftBehind(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source, stuck := newRows(r, 1, 2), make(chan struct{})
		source.slowly(func(_ context.Context, key int64) error {
			if key == 1 {
				<-stuck // whatever its context says
			}
			return nil
		})
		little, limit := 20*time.Millisecond, 300*time.Millisecond
		if r.redis == "real" { // half of little is that of Redis, and a busy machine may be late with all of it
			little, limit = time.Second, 2*time.Second
		}
		c := open(r, source.source(), within(limit), func(o *cache.Options) { o.Rebuild.WaitBudget = 10 * time.Second })
		r.Cleanup(func() { // before the cache closes
			r.eventually("it comes back", func() bool { return c.Stats().Breaker.Running == 0 })
		})
		defer close(stuck)

		ctx, cancel := context.WithTimeout(r.ctx, little)
		defer cancel()
		if _, err := c.Get(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			r.Errorf("a caller with little time gets %v", err)
		}
		began := time.Now()
		if _, err := c.Get(r.ctx, 1); !errors.Is(err, cache.ErrLoadTimeout) {
			r.Errorf("a caller with time gets %v", err)
		}
		if took := time.Since(began); took > 8*time.Second { // the wait for the lease would be ten
			r.Errorf("it took %v", took)
		}
		c.gives(r, 2, "v1")
		if n := source.loads(1); n != 1 {
			r.Errorf("%d loads of the stuck key", n)
		}
		if n := c.Stats().Breaker.Stuck; n != 1 {
			r.Errorf("%d loads counted as stuck", n)
		}
	})
}

// Loads that hang keep their places, or the source would get more and more of them.
// Who needs another place is told that there is none; what is cached answers.
func TestLoadersThatHangKeepTheirPlaces(t *testing.T) {
	for _, c := range []cell{{redis: "mini"}, {redis: "mini", local: true}} {
		t.Run(c.String(), func(t *testing.T) {
			inBubble(t, c, func(r *rig, _ *redistest.MiniServer) {
				const places, cached, ninth, queue = 8, 100, 200, 200 * time.Millisecond
				source, stuck := newRows(r, cached, ninth), make(chan struct{})
				source.slowly(func(_ context.Context, key int64) error {
					if key < places {
						<-stuck // whatever its context says
					}
					return nil
				})
				c := open(r, source.source(), func(o *cache.Options) {
					o.Breaker = redistest.Must(breaker.New(breaker.Options{MaxConcurrent: places, QueueTimeout: queue, Timeout: time.Second}))
				}, unheld)
				c.gives(r, cached, "v1")
				var callers sync.WaitGroup
				for round := range 3 { // the later ones join
					for key := range int64(places) {
						callers.Go(func() {
							ctx, cancel := context.WithTimeout(r.ctx, 500*time.Millisecond)
							defer cancel()
							if _, err := c.Get(ctx, key); !errors.Is(err, context.DeadlineExceeded) {
								r.Errorf("round %d: a caller of a load that hangs gets %v", round, err)
							}
						})
					}
				}
				callers.Wait()
				if n := source.all(); n != 1+places || source.atOnce() != 1 {
					r.Errorf("%d loads of %d keys", n, 1+places)
				}
				time.Sleep(2 * time.Second) // beyond Timeout
				if s := c.Stats().Breaker; s.Stuck != places || s.Running != places {
					r.Errorf("%d loads count as stuck, %d as running, of %d", s.Stuck, s.Running, places)
				}
				began := time.Now()
				_, err := c.Get(r.ctx, ninth)
				if took := time.Since(began); !errors.Is(err, cache.ErrOverloaded) || took > queue {
					r.Errorf("one more gets %v after %v", err, took)
				}
				began = time.Now()
				if c.gives(r, cached, "v1"); time.Since(began) != 0 {
					r.Errorf("what is cached took %v", time.Since(began))
				}
				if n := source.loads(ninth); n != 0 {
					r.Errorf("%d loads beyond the places", n)
				}
				close(stuck)
				r.eventually("the places are free", func() bool { return c.Stats().Breaker.Running == 0 })
				c.gives(r, ninth, "v1")
			})
		})
	}
}

// A deadlock, were it not noticed: the load waits for itself.
func TestALoaderThatAsksForItsOwnKeyIsTold(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		r.known(1, 2)
		var c *probe[int64, string]
		c = open(r, cache.Source[int64, string]{Load: func(ctx context.Context, key int64) (string, error) {
			if key == 2 {
				return "v1", nil
			}
			// Another key is fine, and so is this one by way of a batch or of a
			// goroutine, as long as it has the context.
			if other, err := c.Get(ctx, 2); err != nil || other != "v1" {
				r.Errorf("Get of another key: %q, %v", other, err)
			}
			got := make(chan error, 1)
			go func() {
				_, err := c.Get(ctx, 1)
				got <- err
			}()
			return "", <-got
		}})
		began := time.Now()
		if _, err := c.Get(r.ctx, 1); !errors.Is(err, cache.ErrReentrant) {
			r.Errorf("Get: %v", err)
		}
		most := 4 * time.Second // the load has five
		if r.redis != "real" {
			most = 5 * time.Millisecond // in a bubble nothing else takes time
		}
		if took := time.Since(began); took > most {
			r.Errorf("it took %v", took)
		}
	})
}

// The loader sees the values of the caller's context, for tracing and the like,
// and a deadline of its own.
func TestTheLoadersContext(t *testing.T) {
	type key struct{}
	inCells(t, everyCell(), func(r *rig) {
		r.known(1)
		c := open(r, cache.Source[int64, string]{Load: func(ctx context.Context, _ int64) (string, error) {
			if ctx.Value(key{}) != "trace" {
				r.Error("the values are lost")
			}
			deadline, ok := ctx.Deadline()
			if left := time.Until(deadline); !ok || left < 3*time.Second || left > 6*time.Second {
				r.Errorf("the deadline is in %v, %v", left, ok)
			}
			return "v1", nil
		}}, within(5*time.Second))
		ctx, cancel := context.WithTimeout(context.WithValue(r.ctx, key{}, "trace"), 2*time.Second)
		defer cancel()
		if _, err := c.Get(ctx, 1); err != nil {
			r.Error(err)
		}
	})
}

// A load that takes longer than a lease is not begun a second time, because the
// lease is renewed while it runs.
func TestALoadLongerThanItsLeaseIsNotRepeated(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "real"}}, func(r *rig) {
		source := newRows(r, 1)
		source.slowly(func(context.Context, int64) error { time.Sleep(1800 * time.Millisecond); return nil })
		lease := func(o *cache.Options) { o.Rebuild.Lease = 600 * time.Millisecond }
		var wg sync.WaitGroup
		for range 3 {
			c := open(r, source.source(), lease)
			wg.Go(func() { c.gives(r, 1, "v1") })
		}
		wg.Wait()
		if n := source.loads(1); n != 1 {
			r.Errorf("%d loads", n)
		}
	})
}

// A page that is made of other cached values may join the errors of its parts: one part does not
// exist, and another could not be loaded. That says nothing about the page. Without the second
// look at the error it was cached as absent, for all processes.
func TestAFailureBesideAnAbsenceIsAFailure(t *testing.T) {
	for _, failure := range []error{
		cache.ErrOverloaded, cache.ErrLoadTimeout, breaker.ErrOpen, breaker.ErrLimited, context.DeadlineExceeded, context.Canceled,
	} {
		inCells(t, []cell{{redis: "mini", local: true}}, func(r *rig) {
			r.known(1)
			var broken atomic.Bool
			broken.Store(true)
			load := func(context.Context, int64) (string, error) {
				if broken.Load() {
					return "", fmt.Errorf("page: %w", errors.Join(failure, cache.ErrNotFound))
				}
				return "v1", nil
			}
			many := func(ctx context.Context, keys []int64) (map[int64]string, error) {
				value, err := load(ctx, keys[0])
				return map[int64]string{keys[0]: value}, err
			}
			for name, source := range map[string]cache.Source[int64, string]{"one": {Load: load}, "many": {LoadMany: many}} {
				broken.Store(true)
				c := open(r, source, unheld, func(o *cache.Options) { o.Name = name })
				for range 3 { // Redis takes a null at its second miss
					if _, err := c.Get(r.ctx, 1); !errors.Is(err, failure) || errors.Is(err, cache.ErrNotFound) {
						r.Errorf("%s: Get: %v", name, err)
					}
				}
				broken.Store(false)
				c.gives(r, 1, "v1")
			}
		})
	}
}
