package cache_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// The filter's answer must not come in the way of it either.
func TestAClosedCacheSaysSo(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		c.comesFrom(r, 1, r.near())
		if err := c.Close(); err != nil {
			r.Error(err)
		}
		loads := source.all()
		calls := map[string]error{
			"Invalidate": c.Invalidate(r.ctx, 1), "Invalidate of nothing": c.Invalidate(r.ctx),
			"Set": c.Set(r.ctx, 1, "v1"), "Announce": c.Announce(r.ctx, 2), "Close": c.Close(),
			"Write": c.Write(r.ctx, []int64{1}, func(context.Context) error { r.Error("tx runs"); return nil }),
		}
		if calls["Close"] != nil {
			r.Errorf("a second Close: %v", calls["Close"])
		}
		delete(calls, "Close")
		for _, key := range []int64{1, 404} {
			_, calls["Get"] = c.Get(r.ctx, key)
			_, calls["Fetch"] = c.Fetch(r.ctx, key)
			_, calls["GetMany"] = c.GetMany(r.ctx, []int64{key, 1})
			for call, err := range calls {
				if !errors.Is(err, cache.ErrClosed) {
					r.Errorf("%s after Close: %v", call, err)
				}
			}
		}
		if n := source.all(); n != loads {
			r.Errorf("%d loads after Close", n-loads)
		}
		_ = c.Stats() // does not mind
	})
}

func TestWhoWaitsDuringCloseIsTold(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		source.slowly(gate.wait) // minds its context
		c := open(r, source.source())
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := c.Get(r.ctx, 1); !errors.Is(err, cache.ErrClosed) {
					r.Errorf("Get: %v", err)
				}
			})
		}
		r.eventually("all are in", func() bool { return c.Stats().Gets == 20 })
		gate.arrived(r)
		began := time.Now()
		if err := c.Close(); err != nil {
			r.Error(err)
		}
		if took := time.Since(began); took > 4*time.Second { // the load has five
			r.Errorf("Close took %v", took)
		}
		wg.Wait()
	})
}

// Close must not wait for ever for a loader that does.
func TestCloseLeavesALoaderThatHangsBehind(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		source, stuck := newRows(r, 1), make(chan struct{})
		source.slowly(func(context.Context, int64) error { <-stuck; return nil })
		defer close(stuck)
		c := open(r, source.source(), within(200*time.Millisecond))
		done := make(chan error)
		go func() {
			_, err := c.Get(r.ctx, 1)
			done <- err
		}()
		r.eventually("it hangs", func() bool { return source.loads(1) == 1 })
		if err := c.Close(); err != nil {
			r.Error(err)
		}
		if err := <-done; err == nil {
			r.Error("the caller gets a value")
		}
	})
}

// Close ends the contexts of loads and waits for them, for as long as the breaker lets a load take, or 5 s
// if that has no Timeout.
func TestCloseWaitsForLoadsAndNotForEver(t *testing.T) {
	for name, test := range map[string]struct{ timeout, takes, want time.Duration }{
		"it ends":                           {-1, time.Second, time.Second},
		"it hangs, a breaker without limit": {-1, time.Hour, 5 * time.Second},
		"it hangs, a breaker with one":      {2 * time.Second, time.Hour, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "none"}}, func(r *rig) {
				source, begun := newRows(r, 1), make(chan struct{})
				source.slowly(func(ctx context.Context, _ int64) error {
					close(begun)
					<-ctx.Done()
					time.Sleep(test.takes) // whatever its context says
					return ctx.Err()
				})
				c := open(r, source.source(), within(test.timeout))
				c.getting(r.ctx, 1)
				<-begun
				began := time.Now()
				if err := c.Close(); err != nil {
					r.Error(err)
				}
				if took := time.Since(began); took != test.want {
					r.Errorf("Close took %v, want %v", took, test.want)
				}
				time.Sleep(test.takes) // the bubble waits for it
			})
		})
	}
}

// ristretto panics its callers if it is closed under them, and everything here has
// goroutines of its own.
func TestCloseAtAnyMoment(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, kind := range []string{"real", "none"} {
		t.Run(kind, func(t *testing.T) {
			var client func() redis.UniversalClient
			if kind == "real" {
				client = func() redis.UniversalClient { return server.Client(t) }
			}
			r := newRig(t, cell{redis: kind, local: true, filter: true, breaker: true}, client)
			for round := range redistest.Pick(40, 1000) {
				closeAtAnyMoment(r, time.Duration(round%20)*200*time.Microsecond)
			}
		})
	}
}

func closeAtAnyMoment(r *rig, after time.Duration) {
	source := newRows(r, 1, 2, 3, 4, 5, 6, 7)
	c, err := cache.NewFrom(r.rdb, source.source(), r.options(nil))
	if err != nil {
		r.Fatal(err)
	}
	p := &probe[int64, string]{Cache: c}
	var closed atomic.Bool
	var wg sync.WaitGroup
	for caller := range 32 {
		wg.Go(func() {
			for i := 0; ; i++ {
				saw := closed.Load()
				key := int64((caller + i) % 9)
				var err error
				switch i % 8 {
				case 0:
					err = p.Invalidate(r.ctx, key)
				case 1:
					err = p.Set(r.ctx, key, "v1")
				case 2:
					err = p.Write(r.ctx, []int64{key}, func(context.Context) error { return nil })
				case 3:
					_, err = p.GetMany(r.ctx, []int64{key, key + 1})
				case 4:
					_, err = p.Fetch(r.ctx, key)
				default:
					_, err = p.Get(r.ctx, key)
				}
				switch {
				case errors.Is(err, cache.ErrClosed):
					return
				case saw:
					r.Errorf("call %d after Close: %v", i%8, err)
					return
				case err != nil && !errors.Is(err, cache.ErrNotFound) && !errors.Is(err, cache.ErrUnavailable) && !errors.Is(err, cache.ErrNotInvalidated) && !errors.Is(err, cache.ErrOverloaded):
					r.Errorf("call %d: %v", i%8, err)
					return
				}
			}
		})
	}
	time.Sleep(after)
	for range 3 {
		wg.Go(func() {
			if err := c.Close(); err != nil {
				r.Error(err)
			}
			closed.Store(true)
		})
	}
	wg.Wait()
	p.conserved(r)
}
