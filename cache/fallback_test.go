package cache_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// withRedis are the cells in which a value past its TTL is found in Redis.
var withRedis = []cell{{redis: "mini"}, {redis: "mini", local: true}}

// onlyFallback gives values a second, and then lets them answer for errors only.
func onlyFallback(o *cache.Options) {
	o.TTL, o.Jitter, o.EarlyRefresh = time.Second, -1, -1
	o.StaleWhileRevalidate, o.StaleIfError = -1, time.Hour
}

// oldAndSlow opens a cache that has v1 past its TTL, over a source that has v2 and takes
// so long to say so.
func oldAndSlow(r *rig, load time.Duration, adjust ...func(*cache.Options)) (*rows, *probe[int64, string]) {
	source := newRows(r, 1)
	c := open(r, source.source(), append(adjust, onlyFallback)...)
	c.gives(r, 1, "v1")
	time.Sleep(2 * time.Second)
	source.put(1, "v2")
	source.slowly(func(context.Context, int64) error { time.Sleep(load); return nil })
	return source, c
}

// The TTL is kept while the source works: a slow one is waited for. With a SoftTimeout
// of 200 ms by default all three got v1 after that time, though nothing had failed.
func TestASlowSourceIsWaitedForPastTheTTL(t *testing.T) {
	inCells(t, withRedis, func(r *rig) {
		source, c := oldAndSlow(r, 300*time.Millisecond)
		began := time.Now()
		var callers sync.WaitGroup
		for range 3 { // one opens the flight, the others join it
			callers.Go(func() {
				got, err := c.Fetch(r.ctx, 1)
				if took := time.Since(began); err != nil || got.Value != "v2" || got.Stale || took < 300*time.Millisecond || took > 350*time.Millisecond {
					r.Errorf("Fetch: %+v, %v after %v", got, err, took)
				}
			})
		}
		callers.Wait()
		if n, s := source.loads(1), c.Stats(); n != 2 || s.Stale != 0 {
			r.Errorf("%d loads, %d stale answers", n, s.Stale)
		}
	})
}

// Without SoftTimeout a caller with a long deadline waits for a slow database
// although there is an old value to answer with.
func TestAnOldValueAnswersAfterSoftTimeout(t *testing.T) {
	inCells(t, withRedis, func(r *rig) {
		source, c := oldAndSlow(r, 3*time.Second, func(o *cache.Options) { o.SoftTimeout = 200 * time.Millisecond })

		for i := range 3 { // one opens the flight, the others join it
			began := time.Now()
			got, err := c.Fetch(r.ctx, 1)
			if err != nil || got.Value != "v1" || !got.Stale {
				r.Errorf("Fetch %d: %+v, %v", i, got, err)
			}
			if took := time.Since(began); took < 200*time.Millisecond || took > 250*time.Millisecond {
				r.Errorf("Fetch %d took %v", i, took)
			}
		}
		time.Sleep(3 * time.Second) // the load went on
		c.gives(r, 1, "v2")
		if n := source.loads(1); n != 2 {
			r.Errorf("%d loads", n)
		}
		if s := c.Stats(); s.Stale != 3 || s.Fallbacks != 3 {
			r.Errorf("%+v", s)
		}
	})
}

// The load goes on behind an old value, also if it has to wait for its turn. When the caller
// who took the old value counted as gone, the queue dropped the load, and so each time: a busy
// source never gave such a key a new value.
func TestALoadThatWaitsForItsTurnGoesOnAfterSoftTimeout(t *testing.T) {
	inCells(t, withRedis, func(r *rig) {
		source, c := oldAndSlow(r, time.Second, func(o *cache.Options) {
			o.SoftTimeout = 200 * time.Millisecond
			o.Breaker = must(breaker.New(breaker.Options{MaxConcurrent: 1, Timeout: 10 * time.Second}))
		})
		source.put(2, "v1")
		busy := c.getting(r.ctx, 2)
		synctest.Wait()
		c.gives(r, 1, "v1")
		time.Sleep(3 * time.Second)
		if n := source.loads(1); n != 2 {
			r.Errorf("%d loads", n)
		}
		c.gives(r, 1, "v2")
		if got := <-busy; got.err != nil {
			r.Error(got.err)
		}
	})
}

// Each caller has a fallback of its own. When the one who opened the flight kept it for the
// others, those who joined between the flight's decision and that had none, and nobody read
// again for them: nine of these ten ended with their contexts' errors.
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

// So has each key of a batch that waits for loads which others have begun.
func TestThereIsAFallbackForEachKeyOfABatchThatWaits(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, m *redistest.MiniServer) {
		const keys = 20
		source, gate := newBatches(r, 1, keys), newLatch()
		defer close(gate.open)
		c := open(r, source.source(), onlyFallback)
		c.givesMany(r, upTo(1, keys), "v1")
		time.Sleep(2 * time.Second)
		source.slowly(func(ctx context.Context, _ []int64) error { return gate.wait(ctx, 0) })
		var wg sync.WaitGroup
		wg.Go(func() { c.givesMany(r, upTo(1, keys), "v1") }) // its load ends after 5 s, with an error
		gate.arrived(r)
		reads := c.Stats().RedisRead.Count()
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		got, err := c.GetMany(ctx, upTo(1, keys))
		if err != nil || len(got) != keys {
			r.Errorf("%d values, %v", len(got), err)
		}
		if n := c.Stats().RedisRead.Count() - reads; n != 1 {
			r.Errorf("%d reads of Redis for one batch", n)
		}
		wg.Wait()
	})
}

// The same where the batch has opened the flight of its first key, which it has read. It waits
// for that one until its deadline, and then is too late to read for the others: it reads
// while it waits. Catches that 19 of 20 keys have no value.
func TestABatchReadsFallbacksWhileItWaitsForAKeyThatItHasRead(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, m *redistest.MiniServer) {
		const keys = 20
		source, gate := newBatches(r, 1, keys), newLatch()
		defer close(gate.open)
		c := open(r, source.source(), onlyFallback)
		c.givesMany(r, upTo(1, keys), "v1")
		time.Sleep(2 * time.Second)
		source.slowly(func(ctx context.Context, _ []int64) error { return gate.wait(ctx, 0) })
		var wg sync.WaitGroup
		wg.Go(func() { c.givesMany(r, upTo(2, keys), "v1") }) // its load ends after 5 s, with an error
		gate.arrived(r)
		reads := c.Stats().RedisRead.Count()
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		got, err := c.GetMany(ctx, upTo(1, keys))
		if err != nil || len(got) != keys {
			r.Errorf("%d values, %v", len(got), err)
		}
		if n := c.Stats().RedisRead.Count() - reads; n != 2 {
			r.Errorf("%d reads of Redis: want one for the first key, and one for the others", n)
		}
		wg.Wait()
	})
}

// A fallback answers the caller it was meant for. If it were kept in the local tier,
// it would hide the new value from patient callers for a second.
func TestAFallbackHidesNothingFromTheNextCaller(t *testing.T) {
	inCells(t, withRedis, func(r *rig) {
		_, c := oldAndSlow(r, 150*time.Millisecond)

		impatient, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
		defer cancel()
		if got, err := c.Fetch(impatient, 1); err != nil || got.Value != "v1" || !got.Stale {
			r.Errorf("the impatient caller gets %+v, %v", got, err)
		}
		for range 3 {
			c.gives(r, 1, "v2")
		}
	})
}

// A caller who joins a load knows of every invalidation that returned before. An old
// value that was read before the caller joined may be one that such an invalidation
// ended. Without reading it again for late callers, this one would get v1.
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

// No tier answers beyond TTL and StaleIfError together. A local tier that keeps every
// old value for a second answers at the age of 1.2 s here.
func TestNothingAnswersBeyondStaleIfError(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source(), unheld, func(o *cache.Options) {
			o.TTL, o.Jitter = 200*time.Millisecond, -1
			o.StaleWhileRevalidate, o.StaleIfError = 300*time.Millisecond, 300*time.Millisecond
		})
		c.gives(r, 1, "v1")
		loaded := time.Now()
		source.slowly(func(context.Context, int64) error { return errBroken })
		for time.Since(loaded) < 2*time.Second {
			age := time.Since(loaded)
			got, err := c.Fetch(r.ctx, 1)
			if err == nil && age > 510*time.Millisecond { // times are stored in whole milliseconds
				r.Fatalf("at the age of %v Redis and the process still give %+v", age, got)
			}
			if err != nil && !errors.Is(err, errBroken) {
				r.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// Without Redis a TTL under a second is one: refreshes begin when it ends, not after a
// second.
func TestWithoutRedisAShortTTLIsOne(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true}}, func(r *rig) {
		c := open(r, newRows(r, 1).source(), ttl(100*time.Millisecond))
		oldest := time.Duration(0)
		for range 1000 {
			got, err := c.Fetch(r.ctx, 1)
			if err != nil {
				r.Fatal(err)
			}
			oldest = max(oldest, got.Age)
			time.Sleep(2 * time.Millisecond)
		}
		if oldest > 110*time.Millisecond {
			r.Errorf("the oldest answer was %v old", oldest)
		}
	})
}

// A load goes on without the caller who began it, and its value is kept. If it were
// thrown away, callers with little time would never get one.
func TestWhatALoadBringsIsKeptThoughItsCallerLeft(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true}, {redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		source.slowly(func(context.Context, int64) error { time.Sleep(300 * time.Millisecond); return nil })
		c := open(r, source.source())
		answers := 0
		for range 10 {
			ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
			if _, err := c.Get(ctx, 1); err == nil {
				answers++
			}
			cancel()
			time.Sleep(time.Millisecond) // the local tier shows a new key some moments after its fill
		}
		if answers < 6 || source.loads(1) != 1 {
			r.Errorf("%d of 10 impatient callers got a value, of %d loads", answers, source.loads(1))
		}
	})
}

// The same while Redis is gone, when nothing is published: the value goes to those who wait
// for the load, whoever began it, and stays in the process.
func TestWhileRedisIsGoneALoadIsKeptThoughItsCallerLeft(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		r.Cleanup(func() { time.Sleep(time.Minute) }) // go-redis goes on to dial for a while
		source, w := newRows(r, 1, 2, 3, 4), &way{}
		c := openOn(r, w.client(r, m), source.source())
		w.refuse()
		for key := range int64(4) { // until the outage is declared
			_, _ = c.Get(r.ctx, key)
		}
		r.eventually("the outage is known", func() bool { return c.Stats().Rebuild.Outage })
		source.put(5, "v1")
		source.slowly(func(context.Context, int64) error { time.Sleep(300 * time.Millisecond); return nil })
		var patient sync.WaitGroup
		answers := 0
		for i := range 10 {
			ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
			if i == 1 {
				patient.Go(func() { c.gives(r, 5, "v1") })
			}
			if _, err := c.Get(ctx, 5); err == nil {
				answers++
			}
			cancel()
		}
		patient.Wait()
		if answers < 6 || source.loads(5) != 1 {
			r.Errorf("%d of 10 impatient callers got a value, of %d loads", answers, source.loads(5))
		}
	})
}

// The value is in the local tier before its flight ends. Were it the other way round,
// a caller who comes between the two would load again.
func TestWithoutRedisAKeyIsLoadedOnceForAllWhoAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cell{redis: "none", local: true}, nil)
		source := newRows(r)
		source.slowly(func(context.Context, int64) error { time.Sleep(5 * time.Millisecond); return nil })
		for key := range int64(200) {
			source.put(key, "v1")
		}
		c := open(r, source.source())
		for key := range int64(200) {
			var callers sync.WaitGroup
			for range 100 {
				callers.Go(func() { c.gives(r, key, "v1") })
			}
			callers.Wait()
			if n := source.loads(key); n != 1 {
				r.Errorf("key %d was loaded %d times", key, n)
			}
		}
	})
}
