package cache_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Other processes change values during an outage, and this process does not hear of it. It serves a
// kept value for a second, and then loads from the database, which is healthy. When the load was left
// to the background, the first of these values was a minute old.
func TestDuringAnOutageTheDatabaseComesBeforeWhatIsKept(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true, breaker: true}, func(r *rig, m *redistest.MiniServer) {
		r.Cleanup(func() { time.Sleep(time.Minute) }) // go-redis goes on to dial for a while
		w, source := &way{}, newRows(r, 1, 2, 3, 4, 5)
		c := openOn(r, w.client(r, m), source.source(), ttl(time.Hour))
		c.gives(r, 1, "v1")
		time.Sleep(time.Minute)
		w.refuse()
		for key := int64(2); key <= 5; key++ { // until the outage is known
			c.gives(r, key, "v1")
		}
		if !c.Stats().Rebuild.Outage {
			r.Fatal("no outage")
		}
		shows := func(value string, loads int, stale bool) {
			r.Helper()
			before := source.loads(1)
			got, err := c.Fetch(r.ctx, 1)
			if n := source.loads(1) - before; err != nil || got.Value != value || got.Stale != stale || n != loads {
				r.Errorf("got %+v, %v with %d loads; want %s with %d, stale %v", got, err, n, value, loads, stale)
			}
		}
		source.put(1, "v2") // by another process, whose invalidation does not arrive
		shows("v2", 1, false)
		source.put(1, "v3")
		time.Sleep(800 * time.Millisecond) // the second is shortened by Jitter, like each life
		shows("v2", 0, false)
		time.Sleep(300 * time.Millisecond)
		shows("v3", 1, false)

		time.Sleep(2 * time.Second)
		source.slowly(func(context.Context, int64) error { return errBroken })
		shows("v3", 1, true)
		time.Sleep(100 * time.Millisecond)
		shows("v3", 0, true) // its error is held
		source.slowly(func(context.Context, int64) error { time.Sleep(time.Second); return nil })
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
		defer cancel()
		if got, err := c.Fetch(ctx, 1); err != nil || got.Value != "v3" || !got.Stale {
			r.Errorf("at the deadline of a caller: %+v, %v", got, err)
		}
		time.Sleep(time.Second)
		shows("v3", 0, false) // what the load that went on has brought
	})
}

// A loader reads the old row while its replicas lag. A degraded load cannot check whether its value may
// be kept. Without a bound, the process that has written v2 served v1 for the whole TTL of a local
// entry.
func TestWhatADegradedLoadReadFromALaggingReplicaIsGoneInASecond(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		const lag = 5 * time.Second
		w, source := &way{}, newRows(r, 1)
		c := openOn(r, w.client(r, m), source.source(), func(o *cache.Options) { o.ReplicaLag = lag })
		c.gives(r, 1, "v1")
		if err := c.Invalidate(r.ctx, 1); err != nil { // v2 is written, and the replica has v1
			r.Fatal(err)
		}
		time.Sleep(time.Second)
		release := w.keepBack() // one reply is late
		c.gives(r, 1, "v1")
		release()
		if s := c.Stats(); s.Degraded != 1 || s.Rebuild.Outage {
			r.Errorf("no degraded load: %+v", s)
		}
		c.comesFrom(r, 1, cache.TierLocal) // a hot key is not loaded for each of its readers
		time.Sleep(lag)
		source.put(1, "v2")
		c.gives(r, 1, "v2")
	})
}

// duringABusyOutage opens a cache in an outage that has kept the value of key 1. The load of key 6 holds
// its only degraded place for 0.9 s more; wg waits for this load.
func duringABusyOutage(r *rig, m *redistest.MiniServer) (c *probe[int64, string], source *rows, wg *sync.WaitGroup) {
	r.Cleanup(func() { time.Sleep(time.Minute) })
	w := &way{}
	source, wg = newRows(r, 1, 2, 3, 4, 5, 6, 7), &sync.WaitGroup{}
	c = openOn(r, w.client(r, m), source.source(), ttl(time.Hour), func(o *cache.Options) {
		o.Breaker = redistest.Must(breaker.New(breaker.Options{MaxDegraded: 1}))
	})
	c.gives(r, 1, "v1")
	time.Sleep(time.Minute)
	w.refuse()
	for key := int64(2); key <= 5; key++ {
		c.gives(r, key, "v1")
	}
	source.slowly(func(context.Context, int64) error { time.Sleep(time.Second); return nil })
	wg.Go(func() { c.gives(r, 6, "v1") })
	time.Sleep(100 * time.Millisecond)
	return c, source, wg
}

// No degraded place is free. A read of a kept value does not wait for one; a read of a key without a
// kept value does.
func TestDuringAnOutageAKeptValueDoesNotWaitForAPlace(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		c, source, wg := duringABusyOutage(r, m)
		wg.Go(func() { c.gives(r, 7, "v1") })
		synctest.Wait()
		source.put(1, "v2")
		began := time.Now()
		if got, err := c.Fetch(r.ctx, 1); err != nil || got.Value != "v1" || !got.Stale || time.Since(began) > 0 {
			r.Errorf("got %+v, %v after %v", got, err, time.Since(began))
		}
		wg.Wait()
		if took := time.Since(began); took < 1900*time.Millisecond || source.loads(7) != 1 {
			r.Errorf("the key without a value has waited for %v", took)
		}
		time.Sleep(time.Second)
		c.gives(r, 1, "v2")
	})
}

// A reader that refuses the kept value waits for a degraded place. Catches one that gets ErrOverloaded
// at once.
func TestDuringAnOutageWhoTakesNoKeptValueWaitsForAPlace(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		c, source, wg := duringABusyOutage(r, m)
		source.put(1, "v2")
		for _, rules := range []cache.Reads{{NoStale: true}, {SkipLocal: true}} {
			wg.Go(func() { c.reads(r, rules, 1, "v2", false) })
		}
		wg.Wait()
	})
}
