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

// places gives each cache a breaker of its own with room for n loads.
func places(n int) func(*cache.Options) {
	return func(o *cache.Options) {
		o.Breaker = redistest.Must(breaker.New(breaker.Options{MaxConcurrent: n, Timeout: time.Minute}))
	}
}

// onePlace gives a cache a breaker of its own with room for one load, where nobody waits.
func onePlace(o *cache.Options) {
	o.Breaker = redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 1, QueueTimeout: -1, Timeout: time.Minute}))
}

// One process begins a cold start a moment before the other. Catches leases that are
// taken before there is a place: the first process would have those of all keys, and the
// second would load nothing. So 500 keys took four processes as long as one.
func TestAColdStartIsLoadedByAllProcesses(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		var keys []int64
		for key := range int64(12) {
			keys = append(keys, key)
		}
		source, gate := newRows(r, keys...), newLatch()
		source.slowly(gate.wait)
		first, second := open(r, source.source(), places(4)), open(r, source.source(), places(4))
		var answers []<-chan gotten
		for _, c := range []*probe[int64, string]{first, second} {
			for _, key := range keys {
				answers = append(answers, c.getting(r.ctx, key))
			}
			synctest.Wait()
		}
		if a, b := first.Stats().Loads, second.Stats().Loads; a != 4 || b != 4 {
			r.Errorf("the processes have begun %d and %d loads, want 4 and 4", a, b)
		}
		close(gate.open)
		for _, answer := range answers {
			if got := <-answer; got.value != "v1" || got.err != nil {
				r.Errorf("got %q, %v, want v1", got.value, got.err)
			}
		}
		for _, key := range keys {
			if n := source.loads(key); n != 1 {
				r.Errorf("key %d was loaded %d times, want once", key, n)
			}
		}
	})
}

// A key waits for a place, and another process publishes it meanwhile. Catches a load of what
// is there: the key looks before it loads, at its turn.
func TestAKeyThatAnotherProcessPublishesIsNotLoadedAtItsTurn(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source, gate := newRows(r, 1, 2), newLatch()
		full, other := open(r, source.source(), places(1)), open(r, source.source(), places(1))
		source.slowly(gate.wait)
		busy := full.getting(r.ctx, 1)
		gate.arrived(r)
		source.slowly(nil)
		waits := full.getting(r.ctx, 2)
		synctest.Wait()
		other.gives(r, 2, "v1")
		close(gate.open)
		for _, answer := range []<-chan gotten{busy, waits} {
			if got := <-answer; got.value != "v1" || got.err != nil {
				r.Errorf("got %q, %v, want v1", got.value, got.err)
			}
		}
		if n := source.loads(2); n != 1 {
			r.Errorf("loaded %d times, want once", n)
		}
	})
}

// Several keys of a batch wait for one place. Catches a batch that takes the leases of its
// keys before it has a place: another process would wait for a load that has not begun.
func TestABatchTakesItsLeasesInItsPlace(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source, hangs := newBatches(r, 1, 6), make(chan struct{})
		source.slowly(func(_ context.Context, keys []int64) error {
			if len(keys) == 1 {
				<-hangs
			}
			return nil
		})
		full, other := open(r, source.source(), places(1)), open(r, source.source(), places(1))
		var calls sync.WaitGroup
		calls.Go(func() { full.givesMany(r, []int64{1}, "v1") })
		synctest.Wait()
		calls.Go(func() { full.givesMany(r, upTo(2, 6), "v1") })
		synctest.Wait()
		began := time.Now()
		other.givesMany(r, upTo(2, 6), "v1")
		if took := time.Since(began); took > 100*time.Millisecond {
			r.Errorf("the other process has waited for %v", took)
		}
		close(hangs)
		calls.Wait()
		source.loadedOnce(r, 6)
	})
}

// The breaker of one process has no room and no queue. Catches a refusal that is final
// although another process loads the key at this moment.
func TestARefusedLoadWaitsForThatOfAnotherProcess(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source, gate := newRows(r, 1, 2), newLatch()
		full := open(r, source.source(), onePlace)
		other := open(r, source.source())
		source.slowly(gate.wait)
		hangs := full.getting(r.ctx, 1)
		gate.arrived(r)
		loads := other.getting(r.ctx, 2)
		gate.arrived(r)
		waits := full.getting(r.ctx, 2)
		synctest.Wait()
		close(gate.open)
		for _, answer := range []<-chan gotten{hangs, loads, waits} {
			if got := <-answer; got.value != "v1" || got.err != nil {
				r.Errorf("got %q, %v, want v1", got.value, got.err)
			}
		}
		if n := source.loads(2); n != 1 {
			r.Errorf("loaded %d times, want once", n)
		}
	})
}

// Two keys wait for the only place, and a writer holds the first. Catches a place that is
// given back because there is no lease to be had: the key would go to the end of the queue,
// where its turn may come too late for its callers.
func TestAKeyThatAWriterHoldsIsLoadedInItsTurn(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source, gate := newRows(r, 0, 1, 2), newLatch()
		full, other := open(r, source.source(), places(1)), open(r, source.source())
		source.slowly(gate.wait)
		err := other.Write(r.ctx, []int64{1}, func(context.Context) error {
			answers := []<-chan gotten{full.getting(r.ctx, 0)}
			gate.arrived(r)
			for key := range int64(2) {
				answers = append(answers, full.getting(r.ctx, key+1))
				synctest.Wait()
			}
			close(gate.open)
			for _, answer := range answers {
				if got := <-answer; got.value != "v1" || got.err != nil {
					r.Errorf("got %q, %v, want v1", got.value, got.err)
				}
			}
			if first, second := gate.arrived(r), gate.arrived(r); first != 1 || second != 2 {
				r.Errorf("loaded in the order %d, %d; want 1, 2", first, second)
			}
			return nil
		})
		if err != nil {
			r.Error(err)
		}
	})
}

// The breaker has no place for a key that nobody else loads. Catches a lease that is kept
// for a load that never begins: other processes would wait until it ends by itself.
func TestALeaseWithoutAPlaceIsGivenBackAtOnce(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source, gate := newRows(r, 1, 2), newLatch()
		full := open(r, source.source(), onePlace)
		other := open(r, source.source())
		source.slowly(gate.wait)
		hangs := full.getting(r.ctx, 1)
		gate.arrived(r)
		source.slowly(nil)
		if _, err := full.Get(r.ctx, 2); !errors.Is(err, cache.ErrOverloaded) {
			r.Errorf("Get without a place: %v, want ErrOverloaded", err)
		}
		synctest.Wait()
		began := time.Now()
		other.gives(r, 2, "v1")
		if took := time.Since(began); took > 100*time.Millisecond {
			r.Errorf("the other process has waited for %v", took)
		}
		close(gate.open)
		<-hangs
	})
}

// The only caller of a key leaves between its look and its place at the breaker. Catches a
// load whose end, "nobody waits any more", is the answer of callers who come later.
func TestALoadThatNobodyWaitsForIsNobodysError(t *testing.T) {
	for name, free := range map[string]bool{"a place is free": true, "none is": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{}, func(r *rig, _ *redistest.MiniServer) {
				source, gate, late := newRows(r, 1, 2), newLatch(), newLatch()
				ctx, leave := context.WithCancel(r.ctx)
				c := open(r, source.source(), places(1), func(o *cache.Options) {
					o.Hooks.Rebuild = func(with context.Context, op cache.Op) (context.Context, func(cache.Outcome)) {
						if op.Key == "2" && ctx.Err() == nil {
							leave()
							_ = late.wait(r.ctx, 2)
						}
						return with, nil
					}
				})
				if !free {
					source.slowly(gate.wait)
					first := c.getting(r.ctx, 1)
					defer func() { <-first }() // it counts before the test ends
					gate.arrived(r)
					source.slowly(nil)
				}
				if _, err := c.Get(ctx, 2); !errors.Is(err, context.Canceled) {
					r.Errorf("the caller who left: %v", err)
				}
				close(late.open)
				synctest.Wait()
				second := c.getting(r.ctx, 2)
				synctest.Wait()
				close(gate.open)
				if got := <-second; got.value != "v1" || got.err != nil {
					r.Errorf("got %q, %v, want v1", got.value, got.err)
				}
				if n := source.loads(2); n != 1 {
					r.Errorf("loaded %d times, want once", n)
				}
			})
		})
	}
}
