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

// oldAndSlow opens a cache that has v1 past its TTL, over a source that takes this long to return v2.
func oldAndSlow(r *rig, load time.Duration, adjust ...func(*cache.Options)) (*rows, *probe[int64, string]) {
	source := newRows(r, 1)
	c := open(r, source.source(), append(adjust, onlyFallback)...)
	c.gives(r, 1, "v1")
	time.Sleep(2 * time.Second)
	source.put(1, "v2")
	source.slowly(func(context.Context, int64) error { time.Sleep(load); return nil })
	return source, c
}

// Past the TTL, callers wait for a slow source that works. When SoftTimeout was 200 ms by default, all
// three got v1 after that time, though nothing had failed.
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

// A caller gets the old value after SoftTimeout. Without SoftTimeout a caller with a long deadline
// waits for a slow database, although there is an old value. A page has one SoftTimeout, not one for
// each key: a hundred old values would take 20 s.
func TestAnOldValueAnswersAfterSoftTimeout(t *testing.T) {
	for name, n := range map[string]int64{"a key": 1, "a page": 100} {
		t.Run(name, func(t *testing.T) {
			inCells(t, withRedis, func(r *rig) {
				keys, source := upTo(1, n), newBatches(r, 1, n)
				c := open(r, source.alike(n), onlyFallback, func(o *cache.Options) { o.SoftTimeout = 200 * time.Millisecond })
				c.givesMany(r, keys, "v1")
				time.Sleep(2 * time.Second)
				for _, key := range keys {
					source.put(key, "v2")
				}
				source.forget()
				source.slowly(func(context.Context, []int64) error { time.Sleep(3 * time.Second); return nil })

				for i := range 3 { // one opens the flights, the others join them
					began := time.Now()
					got, err := c.fetches(r, keys)
					if err != nil || len(got) != len(keys) {
						r.Errorf("read %d: %d values, %v", i, len(got), err)
					}
					for key, got := range got {
						if got.Value != "v1" || !got.Stale {
							r.Errorf("read %d of %d: %+v", i, key, got)
						}
					}
					if took := time.Since(began); took < 200*time.Millisecond || took > 250*time.Millisecond {
						r.Errorf("read %d took %v", i, took)
					}
				}
				time.Sleep(3 * time.Second) // the load went on
				c.givesMany(r, keys, "v2")
				source.loadedOnce(r, len(keys))
				if s := c.Stats(); s.Stale != uint64(3*n) || s.Fallbacks != uint64(3*n) {
					r.Errorf("%+v", s)
				}
			})
		})
	}
}

// A load goes on after its caller has taken the old value, even if the load still waits for a place. When
// such a caller counted as gone, the queue dropped the load each time: a busy source never gave the
// key a new value.
func TestALoadThatWaitsForItsTurnGoesOnAfterSoftTimeout(t *testing.T) {
	inCells(t, withRedis, func(r *rig) {
		source, c := oldAndSlow(r, time.Second, func(o *cache.Options) {
			o.SoftTimeout = 200 * time.Millisecond
			o.Breaker = redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 1, Timeout: 10 * time.Second}))
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

func TestAFallbackAnswersWhenTheLoadFails(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "real"}}, func(r *rig) {
		source := newRows(r, 1)
		c, other := open(r, source.source(), fallbackAfterASecond, func(o *cache.Options) { o.Rebuild.ErrorHold = time.Minute }),
			open(r, source.source(), fallbackAfterASecond)
		c.gives(r, 1, "v1")
		pastTTL()
		source.slowly(func(context.Context, int64) error { return errBroken })
		for range 5 {
			if got, err := c.Fetch(r.ctx, 1); err != nil || got.Value != "v1" || !got.Stale || got.Tier != cache.TierRedis {
				r.Errorf("got %+v, %v, want the fallback", got, err)
			}
		}
		if s := c.Stats(); source.loads(1) != 2 || s.Fallbacks != 5 || s.LoadErrors != 1 {
			r.Errorf("%d loads, want the first and one while its error is held: %+v", source.loads(1), s)
		}
		// After an invalidation the fallback does not answer, and the held error neither.
		source.slowly(nil)
		source.put(1, "v2")
		if err := other.Invalidate(r.ctx, 1); err != nil {
			r.Error(err)
		}
		c.gives(r, 1, "v2")
		// A source that answers again beats the fallback.
		pastTTL()
		source.put(1, "v3")
		other.gives(r, 1, "v3")
	})
}

// A fallback is served to its own caller only. In the local tier it would hide the new value from
// patient callers for a second.
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

// No tier serves a value beyond TTL and StaleIfError together. A local tier that keeps every old value
// for a second would serve this one at the age of 1.2 s.
func TestNothingAnswersBeyondStaleIfError(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source(), unheld, func(o *cache.Options) {
			o.TTL, o.Jitter = 200*time.Millisecond, -1
			o.StaleWhileRevalidate, o.StaleIfError = 300*time.Millisecond, 300*time.Millisecond
		})
		most := 510 * time.Millisecond // times are stored in whole milliseconds
		if r.redis == "real" {
			most = 1100 * time.Millisecond // the clock of the local tier is late where the process is
		}
		c.gives(r, 1, "v1")
		loaded := time.Now()
		source.slowly(func(context.Context, int64) error { return errBroken })
		for time.Since(loaded) < 2*time.Second {
			age := time.Since(loaded)
			got, err := c.Fetch(r.ctx, 1)
			if err == nil && age > most {
				r.Fatalf("at the age of %v Redis and the process still give %+v", age, got)
			}
			if err != nil && !errors.Is(err, errBroken) {
				r.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}
