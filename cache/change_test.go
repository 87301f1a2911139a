package cache_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
)

func TestSetAnswersForTheKey(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r)
		c := open(r, source.source())
		if r.filter {
			c.gives404(r, 1) // and Set tells the filter otherwise
		}
		source.put(1, "v1")
		if err := c.Set(r.ctx, 1, "v1"); err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v1")
		c.comesFrom(r, 1, r.near())
		if n := source.loads(1); r.rdb != nil && n != 0 {
			r.Errorf("%d loads of what has been set", n)
		}

		source.put(1, "v2")
		if err := c.Set(r.ctx, 1, "v2"); err != nil {
			r.Fatal(err)
		}
		for range 20 {
			c.gives(r, 1, "v2")
		}
		if r.rdb != nil {
			open(r, source.source()).gives(r, 1, "v2")
		}
	})
}

// Set has to take the lease away, and without Redis void the flight: otherwise the
// load puts v1 over v2.
func TestSetBeatsALoadThatBeganBefore(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		source.slowly(gate.wait)
		c := open(r, source.source())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = c.Get(r.ctx, 1) }) // v1 or v2, it asked before the Set
		gate.arrived(r)
		source.put(1, "v2")
		if err := c.Set(r.ctx, 1, "v2"); err != nil {
			r.Fatal(err)
		}
		close(gate.open)
		wg.Wait()
		for range 20 {
			c.gives(r, 1, "v2")
		}
	})
}

func TestAReadAfterInvalidateLoadsAnew(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r, 1, 2, 3)
		c := open(r, source.source())
		for key := range int64(3) {
			c.gives(r, key+1, "v1")
			c.comesFrom(r, key+1, r.near())
			source.put(key+1, "v2")
		}
		if err := c.Invalidate(r.ctx, 1, 2); err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v2")
		c.gives(r, 2, "v2")
		if r.kept() {
			c.gives(r, 3, "v1") // nobody said anything of it
		}
		if err := c.Invalidate(r.ctx); err != nil {
			r.Errorf("nothing to invalidate: %v", err)
		}
	})
}

// A null has to be dropped like a value, in Redis and in the local tier.
func TestInvalidateDropsNulls(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r)
		r.known(1)
		c := open(r, source.source())
		c.gives404(r, 1)
		c.comesFrom(r, 1, r.near())
		source.put(1, "v1")
		if err := c.Invalidate(r.ctx, 1); err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v1")
	})
}

// Callers who join the flight after the invalidation must not get what it read
// before, nor may it be kept anywhere.
func TestInvalidateBeatsALoadThatBeganBefore(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		source.slowly(gate.wait)
		c := open(r, source.source())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = c.Get(r.ctx, 1) })
		gate.arrived(r)
		source.put(1, "v2")
		if err := c.Invalidate(r.ctx, 1); err != nil {
			r.Fatal(err)
		}
		for range 10 {
			wg.Go(func() { c.gives(r, 1, "v2") })
		}
		r.eventually("they have joined", func() bool { return c.Stats().Gets == 11 })
		close(gate.open)
		wg.Wait()
		for range 20 {
			c.gives(r, 1, "v2")
		}
	})
}

// Without Redis there is nothing but the local tier to keep what was Set.
//
// Catches a Set whose value comes there though an Invalidate has returned since the Set
// began: it answered for its whole TTL.
func TestAnInvalidationBeatsASetInFlightWithoutRedis(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true}}, func(r *rig) {
		rows := newRows(r, 1)
		source := rows.source()
		var c *probe[int64, string]
		source.Clone = func(v string) string { // which Set calls for what it keeps
			if v == "set" {
				rows.put(1, "v2")
				if err := c.Invalidate(r.ctx, 1); err != nil {
					r.Error(err)
				}
			}
			return v
		}
		c = open(r, source)
		if err := c.Set(r.ctx, 1, "set"); err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v2")
	})
}

func TestInvalidateManyKeysAtOnce(t *testing.T) {
	const n = 500 // more than go in one round trip, and more than the unbuffered connections of miniredis take
	inCells(t, []cell{{redis: "real"}, {redis: "real", local: true}, {redis: "none", local: true}}, func(r *rig) {
		var keys []int64
		for key := range int64(n) {
			keys = append(keys, key)
		}
		source := newRows(r, keys...)
		c := open(r, source.source())
		_, _ = c.GetMany(r.ctx, keys)
		for _, key := range keys {
			source.put(key, "v2")
		}
		if err := c.Invalidate(r.ctx, keys...); err != nil {
			r.Fatal(err)
		}
		got, err := c.GetMany(r.ctx, keys)
		if err != nil || len(got) != n {
			r.Fatalf("%d values, %v", len(got), err)
		}
		for key, value := range got {
			if value != "v2" {
				r.Errorf("key %d is %s", key, value)
			}
		}
	})
}

func TestAnnounceMakesAKeyVisible(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r)
		c := open(r, source.source())
		c.gives404(r, 1)
		if r.kept() && !r.filter {
			c.comesFrom(r, 1, r.near())
		}
		if err := c.Announce(r.ctx, 1); err != nil {
			r.Fatal(err)
		}
		source.put(1, "v1")
		c.gives(r, 1, "v1")
	})
}

// refusingFilter knows everything, and learns nothing.
type refusingFilter struct{}

var errFull = errors.New("full")

func (refusingFilter) MayContain(context.Context, string) bool { return true }
func (refusingFilter) Add(context.Context, ...string) error    { return errFull }

// What the filter does not learn it would deny later, so nothing may be written.
func TestAFilterThatDoesNotLearnStopsTheWrite(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source(), func(o *cache.Options) { o.Filter = refusingFilter{} })
		if err := c.Set(r.ctx, 1, "v2"); !errors.Is(err, errFull) {
			r.Errorf("Set: %v", err)
		}
		if err := c.Announce(r.ctx, 1); !errors.Is(err, errFull) {
			r.Errorf("Announce: %v", err)
		}
		err := c.Write(r.ctx, []int64{1}, func(context.Context) error { r.Error("tx runs"); return nil })
		if !errors.Is(err, errFull) {
			r.Errorf("Write: %v", err)
		}
		if err := c.Invalidate(r.ctx, 1); err != nil { // this makes no key exist
			r.Errorf("Invalidate: %v", err)
		}
		c.gives(r, 1, "v1")
	})
}

// A value that is too large to be stored must not leave the one before it behind.
func TestSetOfAnOversizeValueDropsTheOldOne(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source(), func(o *cache.Options) { o.MaxValue = 100 })
		c.gives(r, 1, "v1")
		c.comesFrom(r, 1, r.near())
		large := strings.Repeat("x", 101)
		source.put(1, large)
		if err := c.Set(r.ctx, 1, large); err != nil {
			r.Fatal(err)
		}
		for i := range 3 {
			want := r.withoutRedis(i)
			if r.rdb == nil { // Set itself has put it there
				want = r.near()
			}
			got, err := c.Fetch(r.ctx, 1)
			if err != nil || got.Value != large || got.Tier != want {
				r.Errorf("Fetch gives %d bytes from %v, %v", len(got.Value), got.Tier, err)
			}
		}
		if r.rdb != nil && r.rdb.Exists(r.ctx, valueKey(1)).Val() != 0 {
			r.Error("there is something in Redis")
		}
	})
}

func TestABadKeyStopsEverything(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		short := func(key int64) string {
			if key < 0 {
				return strings.Repeat("9", 513)
			}
			return fmt.Sprint(key)
		}
		source := newRows(r, 1)
		c := open(r, cache.Source[int64, string]{Load: source.load, Key: short})
		c.gives(r, 1, "v1")
		c.comesFrom(r, 1, r.near())
		loads, stats := source.all(), c.Stats()

		calls := map[string]error{
			"Invalidate": c.Invalidate(r.ctx, 1, -1),
			"Announce":   c.Announce(r.ctx, 1, -1),
			"Set":        c.Set(r.ctx, -1, "v2"),
			"Write": c.Write(r.ctx, []int64{1, -1}, func(context.Context) error {
				r.Error("tx runs")
				return nil
			}),
		}
		_, calls["Get"] = c.Get(r.ctx, -1)
		_, calls["Fetch"] = c.Fetch(r.ctx, -1)
		for call, err := range calls {
			if !errors.Is(err, cache.ErrInvalidKey) || !strings.Contains(err.Error(), "513 bytes, more than MaxKey 512") {
				r.Errorf("%s: %v", call, err)
			}
		}
		values, err := c.GetMany(r.ctx, []int64{1, -1})
		var batch *cache.BatchError[int64]
		if !errors.As(err, &batch) || len(batch.Causes) != 1 || !errors.Is(batch.Causes[-1], cache.ErrInvalidKey) || values[1] != "v1" {
			r.Errorf("GetMany: %v, %v", values, err)
		}

		if r.kept() && source.all() != loads {
			r.Errorf("%d loads: the good key has been dropped, or the bad one asked for", source.all()-loads)
		}
		if now := c.Stats(); now.LocalTier.Deletes != stats.LocalTier.Deletes {
			r.Error("something was done to the good key")
		}
	})
}

// After an invalidation no value may be published for a while, because the loader
// reads replicas that may not have the write yet.
func TestReplicaLagKeepsTheKeyClosed(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source(), func(o *cache.Options) { o.ReplicaLag = time.Second })
		if err := c.Invalidate(r.ctx, 1); err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v1") // the replica has not got v2 yet
		source.put(1, "v2")
		time.Sleep(999 * time.Millisecond)
		if s := c.Stats(); s.BesideWriter != 1 || r.rdb.Exists(r.ctx, valueKey(1)).Val() != 0 {
			r.Errorf("%+v", s)
		}
		time.Sleep(2 * time.Millisecond)
		c.gives(r, 1, "v2") // what was read while replicas lagged has ended with that
		c.comesFrom(r, 1, r.near())
	})
}
