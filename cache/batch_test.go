package cache_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A hundred cold keys cost one call of the source and three round trips to Redis: the reads, the
// leases, and the publications.
func TestABatchOfColdKeysIsOneLoadAndFewRoundTrips(t *testing.T) {
	inCells(t, shared, func(r *rig) {
		source, sent := newBatches(r, 1, 200), &traffic{}
		rdb := r.watched(sent)
		c := openOn(r, rdb, source.source())
		c.givesMany(r, upTo(1, 100), "v1") // a server that has not seen the scripts asks for them
		source.forget()
		sent.since()

		c.givesMany(r, upTo(101, 200), "v1")
		source.loadedOnce(r, 100)
		if _, calls := source.loads(); calls != 1 {
			r.Errorf("want one call of LoadMany, got %d", calls)
		}
		if commands, pipelines := sent.since(); commands != 0 || pipelines != 3 {
			r.Errorf("want 3 pipelines and no lone command, got %d and %d", pipelines, commands)
		}
		open(r, source.source()).givesMany(r, upTo(1, 200), "v1") // they have been published
		source.loadedOnce(r, 100)
	})
}

func TestABatchFromRedisIsOneRoundTrip(t *testing.T) {
	inCells(t, shared, func(r *rig) {
		source, sent := newBatches(r, 1, 100), &traffic{}
		open(r, source.source()).givesMany(r, upTo(1, 100), "v1")
		rdb := r.watched(sent)
		openOn(r, rdb, source.source()).givesMany(r, upTo(1, 100), "v1")
		if commands, pipelines := sent.since(); commands != 0 || pipelines != 1 {
			r.Errorf("want one pipeline and no lone command, got %d and %d", pipelines, commands)
		}
		source.loadedOnce(r, 100)
	})
}

// On a cluster each node gets one pipeline for its keys: for reads, for leases and for publications.
func TestOnAClusterABatchIsPipelinedToEachNode(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t)
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprint("local ", local), func(t *testing.T) {
			r := newRig(t, cell{redis: "real", local: local}, nil)
			source := newBatches(r, 1, 300)
			options := func(o *cache.Options) { o.Name, o.RedisTimeout = fmt.Sprint("test", local), 10*time.Second }
			a := openOn(r, redis.UniversalClient(nodes.Client(t)), source.source(), options)
			b := openOn(r, redis.UniversalClient(nodes.Client(t)), source.source(), options)
			var wg sync.WaitGroup
			wg.Go(func() { a.givesMany(r, upTo(1, 200), "v1") })
			wg.Go(func() { b.givesMany(r, upTo(101, 300), "v1") })
			wg.Wait()
			source.loadedOnce(r, 300)
			a.givesMany(r, upTo(1, 300), "v1")
			source.loadedOnce(r, 300)
			for _, key := range upTo(1, 300) {
				source.put(key, "v2")
			}
			if err := a.Invalidate(r.ctx, upTo(1, 300)...); err != nil {
				t.Fatal(err)
			}
			a.givesMany(r, upTo(1, 300), "v2")
			r.eventually("the message has come", func() bool {
				got, err := b.GetMany(r.ctx, upTo(1, 300))
				return err == nil && !slices.Contains(slices.Collect(maps.Values(got)), "v1")
			})
			for _, c := range []*probe[int64, string]{a, b} {
				if s := c.Stats(); s.Rebuild.Unknown != 0 || s.Degraded != 0 || s.Unfit != 0 {
					t.Errorf("not all went well: %+v", s)
				}
			}
		})
	}
}

// A batch of a hundred thousand keys has 1,024 of them under way at a time, in calls and pipelines of
// 256, and nothing of it stays behind.
func TestABatchOfTensOfThousands(t *testing.T) {
	t.Parallel()
	all := redistest.Pick(20_000, 100_000)
	server := redistest.Start(t)
	for _, cell := range []cell{{redis: "real"}, {redis: "none", local: true}} {
		t.Run(cell.String(), func(t *testing.T) {
			r := newRig(t, cell, nil)
			var rdb redis.UniversalClient
			sent := &traffic{}
			if cell.redis == "real" {
				rdb = server.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
				rdb.AddHook(sent)
			}
			r.patient = true
			source := newBatches(r, 1, int64(all))
			var most, running atomic.Int64
			source.slowly(func(context.Context, []int64) error {
				n := running.Add(1)
				defer running.Add(-1)
				for {
					before := most.Load()
					if n <= before || most.CompareAndSwap(before, n) {
						return nil
					}
				}
			})
			c := openOn(r, rdb, source.source())
			c.givesMany(r, upTo(1, int64(all)), "v1")
			source.loadedOnce(r, all)
			if _, calls := source.loads(); calls > all/256*3 {
				r.Errorf("want about %d calls, got %d", all/256, calls)
			}
			if most.Load() > 4 || sent.longest > 256 {
				r.Errorf("want at most 4 calls at a time and 256 commands in a pipeline, got %d and %d", most.Load(), sent.longest)
			}
		})
	}
}

func TestABatchOfNothingAndOfOneKeyManyTimes(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newBatches(r, 1, 2)
		c := open(r, source.source())
		for _, none := range [][]int64{nil, {}} {
			if got, err := c.GetMany(r.ctx, none); got == nil || len(got) != 0 || err != nil {
				r.Errorf("want an empty map, got %v, %v", got, err)
			}
		}
		if _, calls := source.loads(); calls != 0 {
			r.Errorf("want no call for no keys, got %d", calls)
		}
		got, err := c.GetMany(r.ctx, slices.Repeat([]int64{1, 2}, 1000))
		if err != nil || !maps.Equal(got, map[int64]string{1: "v1", 2: "v1"}) {
			r.Errorf("want two values, got %v, %v", got, err)
		}
		source.loadedOnce(r, 2)
	})
}

// LoadMany returns more keys than it was given. The extra values are dropped: nobody has a lease for them.
func TestKeysThatNobodyAskedForAreDropped(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		r.known(1, 2, 3)
		var calls atomic.Int64
		c := open(r, cache.Source[int64, string]{LoadMany: func(_ context.Context, keys []int64) (map[int64]string, error) {
			found := map[int64]string{1: "other", 2: "other", 3: "other"}
			for _, key := range keys {
				found[key] = fmt.Sprint("call ", calls.Add(1))
			}
			return found, nil
		}})
		c.gives(r, 1, "call 1")
		if got, err := c.GetMany(r.ctx, []int64{2}); err != nil || !maps.Equal(got, map[int64]string{2: "call 2"}) {
			r.Errorf("want one value, got %v, %v", got, err)
		}
		c.gives(r, 3, "call 3")
	})
}
