package cache_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// shared are cells of several processes.
var shared = []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real"}, {redis: "real", local: true}}

// A hundred cold keys cost a call of the source, and three round trips to Redis: the
// reads, the leases, the publications.
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

// Each key is loaded by the process that has its lease; the others wait for it.
func TestTwoProcessesLoadTheKeysOfABatchOnce(t *testing.T) {
	inCells(t, shared, func(r *rig) {
		source := newBatches(r, 1, 100)
		source.slowly(func(context.Context, []int64) error { time.Sleep(50 * time.Millisecond); return nil })
		var wg sync.WaitGroup
		for n := range 2 {
			keys := upTo(1, 100)
			if n == 1 {
				slices.Reverse(keys)
			}
			c := open(r, source.source())
			wg.Go(func() { c.givesMany(r, keys, "v1") })
		}
		wg.Wait()
		source.loadedOnce(r, 100)
	})
}

func TestABatchWaitsForTheKeysThatAnotherProcessLoads(t *testing.T) {
	inCells(t, shared, func(r *rig) {
		source, gate := newBatches(r, 1, 10), make(chan struct{})
		source.slowly(func(_ context.Context, keys []int64) error {
			if slices.Contains(keys, 5) {
				<-gate
			}
			return nil
		})
		a, b := open(r, source.source()), open(r, source.source())
		var wg sync.WaitGroup
		wg.Go(func() { a.givesMany(r, upTo(3, 6), "v1") })
		r.eventually("the other process loads", func() bool { return a.Stats().Loads == 1 })
		wg.Go(func() { b.givesMany(r, upTo(1, 10), "v1") })
		r.eventually("the batch waits for it, and has loaded its own", func() bool {
			return b.Stats().Rebuild.Waits >= 4 && b.Stats().Loads == 1
		})
		close(gate)
		wg.Wait()
		source.loadedOnce(r, 10)
	})
}

// A key has one flight in a process, whoever asks.
func TestBatchesAndSingleGetsShareFlights(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source, gate := newBatches(r, 1, 6), make(chan struct{})
		source.slowly(func(context.Context, []int64) error { <-gate; return nil })
		c := open(r, source.source())
		var wg sync.WaitGroup
		asked := func(n uint64, call func()) {
			wg.Go(call)
			r.eventually("it waits", func() bool { return c.Stats().Gets == n })
			time.Sleep(10 * time.Millisecond)
		}
		asked(3, func() { c.givesMany(r, upTo(1, 3), "v1") })
		asked(7, func() { c.givesMany(r, upTo(2, 5), "v1") })
		asked(8, func() { c.gives(r, 5, "v1") })
		asked(9, func() { c.gives(r, 6, "v1") })
		asked(12, func() { c.givesMany(r, upTo(4, 6), "v1") })
		close(gate)
		wg.Wait()
		source.loadedOnce(r, 6)
	})
}

// A key that is absent from the map does not exist, and Redis keeps that from its
// second miss on.
func TestAbsentKeysOfABatchAreNulls(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newBatches(r, 1, 3)
		c := open(r, source.source())
		for range 3 {
			got, err := c.GetMany(r.ctx, upTo(1, 6))
			if err != nil || len(got) != 3 {
				r.Errorf("want 3 values, got %v, %v", got, err)
			}
			c.gives404(r, 5)
		}
		byKey, _ := source.loads()
		if n := byKey[6]; r.rdb != nil && n > 2 {
			r.Errorf("want an absent key loaded twice at the most, got %d times", n)
		}
		if r.rdb == nil {
			return
		}
		other := newBatches(r, 1, 6) // it would have the rows
		if got, err := open(r, other.source()).GetMany(r.ctx, upTo(1, 6)); !r.local && (err != nil || len(got) != 3) {
			r.Errorf("want the nulls of Redis, got %v, %v", got, err)
		}
	})
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

// What LoadMany returns for keys that it was not asked for is dropped: nobody has a
// lease for them.
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

// An error is that of all keys of its call, whatever the map holds: what is missing
// there may exist. The error that says "not found" says it of all.
func TestAnErrorOfLoadManyIsThatOfItsKeys(t *testing.T) {
	broken := errors.New("disk full")
	for name, test := range map[string]struct {
		load func() error
		is   func(error) bool
	}{
		"an error":  {func() error { return broken }, func(err error) bool { return errors.Is(err, broken) }},
		"a panic":   {func() error { panic("bug") }, func(err error) bool { var p *cache.PanicError; return errors.As(err, &p) && p.Value == "bug" }},
		"not found": {func() error { return fmt.Errorf("no rows: %w", cache.ErrNotFound) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, fewCells, func(r *rig) {
				r.known(1, 2, 3)
				c := open(r, cache.Source[int64, string]{LoadMany: func(_ context.Context, keys []int64) (map[int64]string, error) {
					return map[int64]string{keys[0]: "v1"}, test.load()
				}})
				got, err := c.GetMany(r.ctx, []int64{1, 2, 3})
				if len(got) != 0 {
					r.Errorf("want no values, got %v", got)
				}
				if test.is == nil {
					if err != nil {
						r.Errorf("want no error, got %v", err)
					}
					return
				}
				var batch *cache.BatchError
				if !errors.As(err, &batch) || len(batch.Causes) != 3 {
					r.Fatalf("want 3 causes, got %v", err)
				}
				for key, cause := range batch.Causes {
					if !test.is(cause) {
						r.Errorf("want %s for %v, got %v", name, key, cause)
					}
				}
			})
		})
	}
}

// A codec that cannot encode one value spoils neither the batch nor the answer.
func TestAValueOfABatchThatCannotBeStoredIsReturned(t *testing.T) {
	inCells(t, shared, func(r *rig) {
		source := newBatches(r, 1, 3)
		source.put(2, strings.Repeat("x", 1000))
		limit := func(o *cache.Options) { o.MaxValue = 100 }
		got, err := open(r, source.source(), limit).GetMany(r.ctx, upTo(1, 3))
		if err != nil || len(got) != 3 || len(got[2]) != 1000 {
			r.Errorf("want 3 values, got %v, %v", got, err)
		}
		c := open(r, source.source(), limit)
		_, _ = c.GetMany(r.ctx, upTo(1, 3))
		if byKey, _ := source.loads(); byKey[1] != 1 || byKey[2] != 2 || byKey[3] != 1 {
			r.Errorf("want only the large value loaded twice, got %v", byKey)
		}
	})
}

// A key whose load hangs takes no other key's value away. With LoadMany it takes those
// of its own call.
func TestAHungKeyLeavesTheOthersTheirValuesAtTheDeadline(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newRows(r, upTo(1, 300)...)
		source.slowly(func(ctx context.Context, key int64) error {
			if key == 7 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		c := open(r, source.source())
		ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
		defer cancel()
		got, err := c.GetMany(ctx, upTo(1, 300))
		var batch *cache.BatchError
		if len(got) != 299 || !errors.As(err, &batch) || len(batch.Causes) != 1 || !errors.Is(batch.Causes[int64(7)], context.DeadlineExceeded) {
			r.Errorf("want 299 values and the deadline of 7, got %d, %.200v", len(got), err)
		}
	})
}

// A batch has one SoftTimeout, not one for each key: with a source that hangs, a
// hundred old values would take 20 s.
func TestABatchOfOldValuesTakesOneSoftTimeout(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source := newBatches(r, 1, 100)
		window := func(o *cache.Options) {
			o.StaleWhileRevalidate, o.StaleIfError, o.Jitter, o.SoftTimeout = -1, time.Hour, -1, 200*time.Millisecond
		}
		c := open(r, source.source(), window, ttl(time.Minute))
		c.givesMany(r, upTo(1, 100), "v1")
		time.Sleep(2 * time.Minute)
		source.slowly(func(ctx context.Context, _ []int64) error { <-ctx.Done(); return ctx.Err() })
		began := time.Now()
		c.givesMany(r, upTo(1, 100), "v1")
		if took := time.Since(began); took > 300*time.Millisecond {
			r.Errorf("want the old values after 200 ms, got them after %v", took)
		}
		if n := c.Stats().Stale; n != 100 {
			r.Errorf("want 100 stale answers, got %d", n)
		}
	})
}

// Values past their TTL answer at once, and are refreshed in shared calls.
func TestStaleValuesOfABatchAreRefreshed(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source := newBatches(r, 1, 10)
		c := open(r, source.source(), ttl(time.Minute), func(o *cache.Options) {
			o.StaleWhileRevalidate, o.Jitter, o.EarlyRefresh = time.Hour, -1, -1
		})
		c.givesMany(r, upTo(1, 10), "v1")
		time.Sleep(2 * time.Minute)
		for key := range int64(10) {
			source.put(1+key, "v2")
		}
		source.forget()
		c.givesMany(r, upTo(1, 10), "v1")
		r.eventually("all are refreshed", func() bool { return c.Stats().Refreshed == 10 })
		time.Sleep(2 * time.Second) // for which an old value answers in the local tier
		c.givesMany(r, upTo(1, 10), "v2")
		source.loadedOnce(r, 10)
	})
}

// Near the end of its TTL a value that is read is refreshed before it ends.
func TestValuesOfABatchAreRefreshedEarly(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source := newBatches(r, 1, 10)
		source.slowly(func(context.Context, []int64) error { time.Sleep(100 * time.Millisecond); return nil })
		c := open(r, source.source(), ttl(time.Minute), func(o *cache.Options) {
			o.StaleWhileRevalidate, o.Jitter, o.EarlyRefresh = -1, -1, 1000
		})
		c.givesMany(r, upTo(1, 10), "v1")
		time.Sleep(55 * time.Second)
		c.givesMany(r, upTo(1, 10), "v1")
		r.eventually("they are refreshed", func() bool { return c.Stats().Refreshed > 5 })
		if n := c.Stats().Stale; n != 0 {
			r.Errorf("want no stale answers, got %d", n)
		}
	})
}

// Readers of keys that a writer holds load them in one call, and publish nothing.
func TestABatchDuringAWriteIsNotPublished(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newBatches(r, 1, 10)
		reader := open(r, source.source())
		writer := reader
		if r.rdb != nil {
			writer = open(r, source.source())
		}
		err := writer.Write(r.ctx, upTo(1, 10), func(context.Context) error {
			reader.givesMany(r, upTo(1, 10), "v1")
			for key := range int64(10) {
				source.put(1+key, "v2")
			}
			return nil
		})
		if err != nil {
			r.Error(err)
		}
		r.eventually("messages have told the reader", func() bool {
			got, err := reader.GetMany(r.ctx, upTo(1, 10))
			if err != nil {
				r.Error(err)
			}
			for _, value := range got {
				if value != "v2" {
					return false
				}
			}
			return true
		})
		if _, calls := source.loads(); calls < 2 || calls > 2 && !r.local {
			r.Errorf("want two calls, or more while messages come, got %d", calls)
		}
	})
}

// Of a hundred thousand keys 1,024 are under way at a time, in calls and pipelines of
// 256, and nothing of them stays.
func TestABatchOfAHundredThousandKeys(t *testing.T) {
	const all = 100_000
	server := start(t)
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
			leavesNothing(t)
			source := newBatches(r, 1, all)
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
			c.givesMany(r, upTo(1, all), "v1")
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

// Every key of a batch goes to its own node: one pipeline to each, for reads, leases and
// publications.
func TestOnAClusterABatchIsPipelinedToEachNode(t *testing.T) {
	leavesNothing(t)
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
