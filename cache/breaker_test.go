package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

var withBreaker = []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real"}, {redis: "none"}, {redis: "none", local: true}}

// A source that keeps failing is left alone; what is cached is not affected.
func TestAFailingSourceIsSparedAndSaysSo(t *testing.T) {
	inCells(t, withBreaker, func(r *rig) {
		source := newRows(r, 1, 2)
		b := redistest.Must(breaker.New(breaker.Options{MinRequests: 5, Cooldown: time.Hour}))
		c := open(r, source.source(), func(o *cache.Options) { o.Breaker = b }, unheld)
		c.gives(r, 1, "v1")
		c.comesFrom(r, 1, r.near())
		broken := errors.New("connection refused")
		source.slowly(func(context.Context, int64) error { return broken })

		failed := 0
		for b.State() != breaker.Open {
			if _, err := c.Get(r.ctx, 2); !errors.Is(err, broken) {
				r.Fatalf("Get: %v", err)
			}
			if failed++; failed > 1000 {
				r.Fatal("it never opens")
			}
		}
		loads := source.all()
		for range 20 {
			_, err := c.Get(r.ctx, 2)
			if !errors.Is(err, cache.ErrOverloaded) || !errors.Is(err, breaker.ErrOpen) || errors.Is(err, cache.ErrNotFound) {
				r.Errorf("Get: %v", err)
			}
		}
		if n := source.all() - loads; n != 0 {
			r.Errorf("the source was asked %d times", n)
		}
		if r.kept() {
			c.gives(r, 1, "v1")
		}
		// What the writers do needs no source.
		if err := c.Set(r.ctx, 2, "v2"); err != nil {
			r.Errorf("Set: %v", err)
		}
		if r.kept() {
			r.eventually("what was set is read", func() bool { // the local tier shows it some moments later
				got, _ := c.Get(r.ctx, 2)
				return got == "v2"
			})
		}
	})
}

func TestASourceThatIsBusyIsNotAskedForMore(t *testing.T) {
	inCells(t, withBreaker, func(r *rig) {
		source, gate := newRows(r, 1, 2), newLatch()
		source.slowly(gate.wait)
		c := open(r, source.source(), func(o *cache.Options) {
			o.Breaker = redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 1, QueueTimeout: -1}))
		}, unheld)
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.gives(r, 1, "v1")
		}()
		gate.arrived(r)
		_, err := c.Get(r.ctx, 2)
		if !errors.Is(err, cache.ErrOverloaded) || !errors.Is(err, breaker.ErrLimited) || errors.Is(err, breaker.ErrOpen) {
			r.Errorf("Get: %v", err)
		}
		close(gate.open)
		<-done
		r.eventually("the place is free", func() bool { return c.Stats().Breaker.Running == 0 })
		c.gives(r, 2, "v1")
	})
}

// Not found is an answer, and a caller who hangs up is none: neither may open the
// breaker, or a scraper could.
func TestScrapersDoNotTripTheBreaker(t *testing.T) {
	inCells(t, withBreaker, func(r *rig) {
		source := newRows(r)
		b := redistest.Must(breaker.New(breaker.Options{MinRequests: 5}))
		c := open(r, source.source(), func(o *cache.Options) { o.Breaker = b })
		for key := range int64(50) {
			c.gives404(r, key)
		}
		gate := newLatch()
		source.slowly(gate.wait)
		for key := int64(50); key < 100; key++ {
			ctx, cancel := context.WithCancel(r.ctx)
			go func() {
				gate.arrived(r)
				cancel()
			}()
			if _, err := c.Get(ctx, key); !errors.Is(err, context.Canceled) {
				r.Errorf("Get: %v", err)
			}
		}
		close(gate.open)
		r.eventually("the loads have ended", func() bool { return c.Stats().Breaker.Running == 0 })
		if s := c.Stats().Breaker; b.State() != breaker.Closed || s.Failures != 0 || s.Excluded != 0 || s.Successes != 100 {
			r.Errorf("%+v", s)
		}
	})
}

// Half of all reads are of one key that the source fails for. Its error is held, so
// that these are few loads, and the breaker stays closed for all other keys. Without
// that it opens within the first second.
func TestOneBadKeyCostsTheOthersNothing(t *testing.T) {
	inBubble(t, cell{redis: "mini", breaker: true}, func(r *rig, _ *redistest.MiniServer) {
		const bad, length = 0, 20 * time.Second
		source := newRows(r)
		source.slowly(func(_ context.Context, key int64) error {
			if key == bad {
				return errBroken
			}
			return nil
		})
		c := open(r, source.source())
		began, reads := time.Now(), 0
		for ; time.Since(began) < length; reads++ {
			if _, err := c.Get(r.ctx, bad); !errors.Is(err, errBroken) {
				r.Errorf("the bad key gives %v", err)
			}
			good := int64(1 + reads)
			source.put(good, "v1")
			c.gives(r, good, "v1")
			time.Sleep(20 * time.Millisecond)
		}
		r.Logf("%d reads of the bad key: %d loads of it; %d of others, all answered", reads, source.loads(bad), source.all()-source.loads(bad))
		if most := int(length/(200*time.Millisecond)) + 1; source.loads(bad) > most || source.loads(bad) < 2 {
			r.Errorf("%d loads of the bad key", source.loads(bad))
		}
		if s := c.Stats().Breaker; s.State != breaker.Closed {
			r.Errorf("%+v", s)
		}
	})
}

// The caches of one database share its limits.
func TestCachesShareABreaker(t *testing.T) {
	inCells(t, withBreaker, func(r *rig) {
		b := redistest.Must(breaker.New(breaker.Options{MinRequests: 5, Cooldown: time.Hour}))
		broken := errors.New("connection refused")
		failing := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) { return "", broken }},
			func(o *cache.Options) { o.Name, o.Breaker = "failing", b }, unheld)
		other := open(r, newRows(r, 1).source(), func(o *cache.Options) { o.Name, o.Breaker = "other", b })
		for b.State() != breaker.Open {
			_, _ = failing.Get(r.ctx, 1)
		}
		if _, err := other.Get(r.ctx, 1); !errors.Is(err, breaker.ErrOpen) {
			r.Errorf("Get: %v", err)
		}
	})
}

// Slow loads are failures, also for a cache whose callers never wait that long: a
// load ends by its own timeout, not by theirs.
//
// Defect: of a source with LoadMany at most 12 calls counted at a time, since four that hung let no other begin.
func TestASourceThatOnlyHangsOpensTheBreaker(t *testing.T) {
	inCells(t, []cell{{redis: "mini", breaker: true}, {redis: "none", breaker: true}}, func(r *rig) {
		one, many := newRows(r), newBatches(r, 0, 0)
		one.slowly(func(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() })
		many.slowly(func(ctx context.Context, _ []int64) error { <-ctx.Done(); return ctx.Err() })
		for name, source := range map[string]cache.Source[int64, string]{"one": one.source(), "many": many.source()} {
			c := open(r, source, func(o *cache.Options) { o.Name = name })
			for key := int64(1); c.Stats().Breaker.State != breaker.Open; key++ {
				ctx, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
				_, err := c.Get(ctx, key)
				cancel()
				if err == nil || key > 1000 {
					r.Fatalf("%s: Get(%d): %v", name, key, err)
				}
				if errors.Is(err, breaker.ErrLimited) {
					time.Sleep(50 * time.Millisecond) // it has heard at once that its turn cannot come in time
				}
			}
		}
	})
}

// A loader may return the ErrLimited of a breaker of its own. That is an error of a load that
// has run, so it is held. Taken for a refusal of this cache's breaker, which other callers may
// not meet, it made twenty Gets run the outer query twenty times.
func TestAnErrLimitedOfTheLoaderIsHeld(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none"}}, func(r *rig) {
		source := newRows(r, 1)
		source.slowly(func(context.Context, int64) error { return fmt.Errorf("outer query: %w", breaker.ErrLimited) })
		c := open(r, source.source())
		for range 20 {
			if _, err := c.Get(r.ctx, 1); !errors.Is(err, breaker.ErrLimited) {
				r.Errorf("got %v", err)
			}
		}
		if n := source.loads(1); n != 1 {
			r.Errorf("%d loads for 20 Gets", n)
		}
	})
}
