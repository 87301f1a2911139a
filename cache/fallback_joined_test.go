package cache_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Each waiting caller gets a fallback of its own. When the caller that opened the flight kept it for the
// others, those that joined after the flight's decision had none, and nobody read again for them:
// nine of these ten got the errors of their contexts.
func TestThereIsAFallbackForEverybodyWhoWaits(t *testing.T) {
	const callers = 10
	for name, test := range map[string]struct {
		waits, fails bool
	}{
		"while the first one reads":                     {false, false},
		"one after another":                             {true, false},
		"while the first one reads, and the load fails": {false, true},
		"one after another, and the load fails":         {true, true},
	} {
		for _, tiers := range withRedis {
			t.Run(name+", "+tiers.String(), func(t *testing.T) {
				inBubble(t, tiers, func(r *rig, m *redistest.MiniServer) {
					window := func(o *cache.Options) {
						o.TTL, o.Jitter, o.EarlyRefresh = 300*time.Millisecond, -1, -1
						o.StaleWhileRevalidate, o.StaleIfError = -1, time.Minute
					}
					source := newRows(r, 1)
					first := open(r, source.source(), window)
					r.deaf = true // messages are not live yet, and this process has kept nothing
					w := &way{}
					second := openOn(r, w.client(r, m), source.source(), window)
					first.gives(r, 1, "v1")
					time.Sleep(time.Second)
					source.slowly(func(context.Context, int64) error {
						if test.fails {
							time.Sleep(100 * time.Millisecond)
							return errBroken
						}
						time.Sleep(3 * time.Second)
						return nil
					})
					release := w.keepBack() // the reply to the first of them
					defer release()
					var wg sync.WaitGroup
					for range callers {
						if test.waits {
							release()
							synctest.Wait()
						}
						wg.Go(func() {
							ctx, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
							defer cancel()
							if got, err := second.Fetch(ctx, 1); err != nil || got.Value != "v1" || !got.Stale {
								r.Errorf("Fetch: %+v, %v", got, err)
							}
						})
					}
					synctest.Wait()
					release()
					wg.Wait()
					if s := second.Stats(); s.Stale != callers || s.Fallbacks != callers {
						r.Errorf("%d stale answers, %d fallbacks", s.Stale, s.Fallbacks)
					}
					if n := source.loads(1); n != 2 {
						r.Errorf("%d loads", n)
					}
				})
			})
		}
	}
}

// An early and a late caller join the same flight, and an invalidation comes in between. The late one
// must not get the fallback that was read before the invalidation.
func TestAFallbackIsOnlyForCallersFromBeforeItWasRead(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source, elsewhere, gate := newRows(r, 1), newRows(r), newLatch()
		c, other := open(r, source.source(), fallbackAfterASecond), open(r, elsewhere.source(), fallbackAfterASecond)
		c.gives(r, 1, "v1")
		pastTTL()
		source.slowly(func(ctx context.Context, key int64) error { return errors.Join(gate.wait(ctx, key), errBroken) })
		early := c.getting(r.ctx, 1)
		gate.arrived(r)
		elsewhere.put(1, "v2")
		if err := other.Invalidate(r.ctx, 1); err != nil {
			r.Error(err)
		}
		other.gives(r, 1, "v2")
		late := c.getting(r.ctx, 1)
		synctest.Wait()
		close(gate.open)
		if got := <-early; got.err != nil {
			r.Errorf("the early caller gets %v", got.err)
		}
		if got := <-late; got.value != "v2" || got.err != nil {
			r.Errorf("the late caller gets %q, %v, want v2", got.value, got.err)
		}
	})
}

// A caller that joins a load knows of every invalidation that returned before. A fallback that was read
// earlier may have been ended by such an invalidation, so it is read again for late callers. Without
// that, this one would get v1.
func TestAFallbackIsReadAgainForLateCallers(t *testing.T) {
	inCells(t, withRedis, func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		c, writer := open(r, source.source(), onlyFallback), open(r, source.source(), onlyFallback)
		c.gives(r, 1, "v1")
		time.Sleep(2 * time.Second)
		source.slowly(gate.wait)
		var callers sync.WaitGroup
		callers.Go(func() { // before the write: either value is right
			if _, err := c.Get(r.ctx, 1); err != nil {
				r.Error(err)
			}
		})
		gate.arrived(r)
		source.put(1, "v2")
		if err := writer.Invalidate(r.ctx, 1); err != nil {
			r.Error(err)
		}
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(r.ctx, time.Second)
			defer cancel()
			if got, err := c.Get(ctx, 1); err == nil && got == "v1" {
				r.Error("a Get that began after Invalidate had returned gives v1")
			}
		})
		time.Sleep(2 * time.Second)
		close(gate.open)
		callers.Wait()
		c.gives(r, 1, "v2")
	})
}

// Callers join a load that hangs. Each reads the fallback before its own deadline: without that read
// it would get nothing, and with the first caller's value it would miss a write.
func TestThoseWhoJoinLaterTakeTheFallbackAsItIsThen(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		patient := func(o *cache.Options) { fallbackAfterASecond(o); o.SoftTimeout = time.Hour }
		c, waits, writer := open(r, source.source(), patient), open(r, source.source(), patient), open(r, source.source(), patient)
		c.gives(r, 1, "v1")
		pastTTL()
		source.slowly(gate.wait)
		early := c.getting(r.ctx, 1)
		gate.arrived(r)
		takes := func(c *probe[int64, string], want string) {
			r.Helper()
			ctx, leave := context.WithTimeout(r.ctx, 500*time.Millisecond)
			defer leave()
			if got := <-c.getting(ctx, 1); got.value != want || got.err != nil {
				r.Errorf("got %q, %v, want %q", got.value, got.err, want)
			}
		}
		takes(c, "v1")
		takes(waits, "v1") // it waits for the lease
		if err := writer.Set(r.ctx, 1, "v2"); err != nil {
			r.Error(err)
		}
		takes(c, "v2")
		takes(waits, "v2")
		close(gate.open)
		<-early
	})
}
