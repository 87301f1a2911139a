package cache_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A key that Load says does not exist, or that is absent from the map of LoadMany, is left out. Redis
// stores a null for it from its second miss on.
func TestGetManyLeavesOutWhatDoesNotExist(t *testing.T) {
	for name, test := range map[string]struct {
		kind  func(*batches) cache.Source[int64, string]
		cells []cell
	}{
		"Load": {(*batches).oneByOne, everyCell()}, "LoadMany": {(*batches).source, fewCells},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, test.cells, func(r *rig) {
				source := newBatches(r, 1, 3)
				r.known(404)
				c := open(r, test.kind(source))
				c.gives(r, 1, "v1")
				want := map[int64]string{1: "v1", 2: "v1", 3: "v1"}
				for range 3 {
					got, err := c.GetMany(r.ctx, []int64{1, 2, 404, 3, 2, 405, 406, 1})
					if err != nil || !maps.Equal(got, want) {
						r.Errorf("GetMany: %v, %v", got, err)
					}
					c.gives404(r, 406)
				}
				if r.rdb == nil {
					return
				}
				byKey, _ := source.loads()
				for key, n := range byKey {
					if _, exists := want[key]; n > 2 || n > 1 && exists {
						r.Errorf("%d loads of %d", n, key)
					}
				}
				for key := range int64(3) {
					source.put(404+key, "v1")
				}
				if got, err := open(r, test.kind(source)).GetMany(r.ctx, []int64{1, 2, 3, 404, 405, 406}); !r.local && (err != nil || !maps.Equal(got, want)) {
					r.Errorf("want the nulls of Redis, got %v, %v", got, err)
				}
			})
		})
	}
}

// Each key of a page has a Result of its own. Catches one that says of a value in the local tier
// past its TTL that it is not stale, and one that gives an absent key a zero Result.
func TestFetchManyTellsOfEachValueWhereItCameFrom(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
		source := newRows(r, 1, 2, 3)
		c, other := open(r, source.source(), ttl(10*time.Second)), open(r, source.source(), ttl(10*time.Second))
		c.gives(r, 1, "v1")
		other.gives(r, 2, "v1")
		time.Sleep(2 * time.Second)
		got, err := c.FetchMany(r.ctx, []int64{1, 2, 3, 404, 3})
		if err != nil || len(got) != 3 {
			r.Fatalf("FetchMany: %v, %v", got, err)
		}
		for key, want := range map[int64]cache.Tier{1: cache.TierLocal, 2: cache.TierRedis, 3: cache.TierSource} {
			if got := got[key]; got.Value != "v1" || got.Tier != want || got.Stale || (got.Age < time.Second) != (key == 3) {
				r.Errorf("%d is %+v, want from %v", key, got, want)
			}
		}
		time.Sleep(8100 * time.Millisecond)
		source.slowly(func(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() }) // in the refresh
		c.gives(r, 1, "v1")                                                                        // past its TTL, and in the local tier for a moment
		got, err = c.FetchMany(r.ctx, []int64{1})
		if err != nil || got[1].Tier != cache.TierLocal || !got[1].Stale {
			r.Errorf("past its TTL: %+v, %v", got, err)
		}
		if got, err := c.FetchMany(r.ctx, nil); err != nil || len(got) != 0 || got == nil {
			r.Errorf("FetchMany of nothing: %v, %v", got, err)
		}
	})
}

// One key's error must not take the others' values away, nor make it look absent.
func TestGetManyTellsWhichKeysFailedAndWhy(t *testing.T) {
	broken := errors.New("bad block")
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r, 1, 2, 3, 4)
		source.slowly(func(_ context.Context, key int64) error {
			switch key {
			case 2:
				return broken
			case 3:
				panic("bug in the loader")
			}
			return nil
		})
		c := open(r, source.source())
		got, err := c.GetMany(r.ctx, []int64{1, 2, 3, 4, 404})
		if len(got) != 2 || got[1] != "v1" || got[4] != "v1" {
			r.Errorf("values: %v", got)
		}
		var batch *cache.BatchError[int64]
		if !errors.As(err, &batch) || len(batch.Causes) != 2 {
			r.Fatalf("error: %v", err)
		}
		var panicked *cache.PanicError
		if !errors.Is(batch.Causes[2], broken) || !errors.As(batch.Causes[3], &panicked) {
			r.Errorf("causes: %v", batch.Causes)
		}
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), " and 1 more: ") {
			r.Errorf("error: %v", err)
		}
	})
}

// One key's load hangs, and all other keys have their values when the caller leaves. With LoadMany the
// other keys of the same call have none.
func TestGetManyGivesWhatItHasAtTheDeadline(t *testing.T) {
	for name, test := range map[string]struct {
		cells []cell
		until func(context.Context) (context.Context, context.CancelFunc)
		cause error
	}{
		"canceled": {everyCell(), context.WithCancel, context.Canceled},
		"its deadline": {fewCells, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 4*time.Second) // the load has five
		}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, test.cells, func(r *rig) {
				const hangs = 7
				all := upTo(1, 300)
				source, gate := newRows(r, all...), newLatch()
				source.slowly(func(ctx context.Context, key int64) error {
					if key == hangs {
						return gate.wait(ctx, key)
					}
					return nil
				})
				c := open(r, source.source())
				ctx, cancel := test.until(r.ctx)
				defer cancel()
				var wg sync.WaitGroup
				wg.Go(func() {
					got, err := c.GetMany(ctx, all)
					for key, value := range got {
						if value != "v1" || key == hangs {
							r.Errorf("%d is %q", key, value)
						}
					}
					var batch *cache.BatchError[int64]
					if len(got) != 299 || !errors.As(err, &batch) || len(batch.Causes) != 1 || !errors.Is(batch.Causes[hangs], test.cause) {
						r.Errorf("want 299 values and an error for %d, got %d, %.200v", hangs, len(got), err)
					}
				})
				gate.arrived(r)
				others := slices.DeleteFunc(slices.Clone(all), func(key int64) bool { return key == hangs })
				c.givesMany(r, others, "v1") // now they have their values
				if test.cause == context.Canceled {
					cancel()
				}
				wg.Wait()
				close(gate.open) // the load goes on without its caller, and is kept
				r.eventually("the load has ended", func() bool { return c.Stats().Breaker.Running == 0 })
				source.slowly(nil)
				c.gives(r, hangs, "v1")
			})
		})
	}
}

// On a goroutine of GetMany's own a panic would end the process.
func TestAPanicInGetManyIsACause(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newRows(r, 1, 2)
		src := source.source()
		src.Clone = func(value string) string {
			if value == "v2" {
				panic("bug in Clone")
			}
			return value
		}
		source.put(2, "v2")
		c := open(r, src)
		got, err := c.GetMany(r.ctx, []int64{1, 2})
		var panicked *cache.PanicError
		if len(got) != 1 || got[1] != "v1" || !errors.As(err, &panicked) || panicked.Value != "bug in Clone" {
			r.Errorf("GetMany: %v, %v", got, err)
		}
	})
}

// Nor does a key whose text cannot be made keep the others from their values, or count as a Get
// that never ends.
func TestAPanicOfSourceKeyIsACause(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "none"}}, func(r *rig) {
		source := newRows(r, 1, 2, 3)
		src := source.source()
		src.Key = func(key int64) string {
			if key == 2 {
				panic("bug in Key")
			}
			return strconv.FormatInt(key, 10)
		}
		c := open(r, src)
		for range 2 {
			got, err := c.GetMany(r.ctx, []int64{1, 2, 3})
			var panicked *cache.PanicError
			if len(got) != 2 || got[1] != "v1" || got[3] != "v1" || !errors.As(err, &panicked) || panicked.Value != "bug in Key" {
				r.Errorf("GetMany: %v, %v", got, err)
			}
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = c.Cache.Get(r.ctx, 2) // which is none that the cache can count
			r.Error("the panic of Key has not come to the caller of Get")
		}()
	})
}

func TestASourceMayLoadManyAtOnce(t *testing.T) {
	broken := errors.New("disk full")
	inCells(t, everyCell(), func(r *rig) {
		r.known(1, 2, 3, 404)
		c := open(r, cache.Source[int64, string]{
			LoadMany: func(_ context.Context, keys []int64) (map[int64]string, error) {
				found := map[int64]string{77: "nobody asked for this"}
				for _, key := range keys {
					switch key {
					case 3:
						return found, broken // incomplete: what is missing may exist
					case 404:
					default:
						found[key] = "v1"
					}
				}
				return found, nil
			},
		})
		c.gives(r, 1, "v1")
		c.gives404(r, 404)
		if _, err := c.Get(r.ctx, 3); !errors.Is(err, broken) || errors.Is(err, cache.ErrNotFound) {
			r.Errorf("an incomplete batch gives %v", err)
		}
		got, err := c.GetMany(r.ctx, []int64{1, 2, 404})
		if err != nil || len(got) != 2 || got[2] != "v1" {
			r.Errorf("GetMany: %v, %v", got, err)
		}
	})
}

// Each load waits until 64 are running: if fewer ran at a time, none would ever end.
func TestAPageOfSingleLoadsRunsSixtyFourAtATime(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		var running sync.WaitGroup
		running.Add(64)
		c := open(r, cache.Source[int64, string]{Load: func(ctx context.Context, _ int64) (string, error) {
			running.Done()
			all := make(chan struct{})
			go func() { running.Wait(); close(all) }()
			select {
			case <-all:
				return "v", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}})
		if got, err := c.GetMany(r.ctx, upTo(1, 64)); len(got) != 64 || err != nil {
			r.Errorf("%d values, %v", len(got), err)
		}
	})
}
