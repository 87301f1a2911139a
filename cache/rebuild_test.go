package cache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A gotten is what a Get on another goroutine gave.
type gotten struct {
	value string
	err   error
}

// getting does a Get of a string on another goroutine.
func (p *probe[K, V]) getting(ctx context.Context, key K) <-chan gotten {
	c := make(chan gotten, 1)
	go func() {
		value, err := p.Get(ctx, key)
		c <- gotten{fmt.Sprint(value), err}
	}()
	return c
}

// A load beside a writer answers the callers who had joined before it began. Later ones
// may know of another write that it did not see. The load is not shared then. Without
// TakeBack after it, the late caller gets the old value here.
func TestALoadBesideAWriterIsForThoseWhoWereThere(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		c, other := open(r, source.source()), open(r, source.source())
		err := other.Write(r.ctx, []int64{1}, func(context.Context) error {
			source.slowly(gate.wait)
			early := c.getting(r.ctx, 1)
			gate.arrived(r)
			source.slowly(nil)
			source.put(1, "v2") // by another writer than the one who holds the key
			if err := other.Invalidate(r.ctx, 1); err != nil {
				r.Error(err)
			}
			late := c.getting(r.ctx, 1)
			synctest.Wait()
			close(gate.open)
			if got := <-early; got.value != "v1" || got.err != nil {
				r.Errorf("the early caller gets %q, %v, want v1", got.value, got.err)
			}
			if got := <-late; got.value != "v2" || got.err != nil {
				r.Errorf("the caller after the invalidation gets %q, %v, want v2", got.value, got.err)
			}
			return nil
		})
		if err != nil {
			r.Error(err)
		}
	})
}

// Callers who joined before the last load began asked before its value could be old.
// Later ones go on to a flight of their own. Without TakeBack after the refused commit,
// the late caller gets the old value here.
func TestALoadRefusedAgainAndAgainIsForThoseWhoWereThere(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		n := 0
		reached, release := make(chan struct{}), make(chan struct{})
		c := open(r, cache.Source[int64, string]{Load: func(ctx context.Context, key int64) (string, error) {
			n++
			value := fmt.Sprint(n)
			reached <- struct{}{}
			<-release
			return value, nil
		}})
		early := c.getting(r.ctx, 1)
		for load := range 3 {
			<-reached
			if err := c.Invalidate(r.ctx, 1); err != nil {
				r.Error(err)
			}
			if load < 2 {
				release <- struct{}{}
			}
		}
		late := c.getting(r.ctx, 1)
		r.eventually("the late caller is in", func() bool { return c.Stats().Gets == 2 })
		time.Sleep(10 * time.Millisecond) // it is counted before it joins
		release <- struct{}{}
		if got := <-early; got.value != "3" || got.err != nil {
			r.Errorf("the early caller gets %q, %v, want the third load", got.value, got.err)
		}
		select {
		case <-reached:
			release <- struct{}{}
		case got := <-late:
			r.Fatalf("the caller after the last invalidation gets %q, %v of a load from before it", got.value, got.err)
		}
		if got := <-late; got.value != "4" || got.err != nil {
			r.Errorf("the caller after the last invalidation gets %q, %v, want a load of its own", got.value, got.err)
		}
	})
}

// The flight of callers who joined too late must not end with the context of the caller
// whose flight they joined: that caller has its answer, and its request may be over.
func TestACallerWhoHasGoneTakesNoLateJoinerAlong(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, m *redistest.MiniServer) {
		source := newRows(r, 1)
		open(r, source.source()).gives(r, 1, "v1")
		c := open(r, source.source())
		reading, answer := make(chan struct{}), make(chan struct{})
		var reads atomic.Int32
		ctx, leave := context.WithCancel(r.ctx)
		defer leave()
		m.Before(func(command string, args []string) {
			if command != "GETRANGE" || args[0] != valueKey(1) {
				return
			}
			if reads.Add(1) == 1 {
				close(reading)
				<-answer
				leave()
			}
		})
		first := c.getting(ctx, 1)
		<-reading
		late := c.getting(r.ctx, 1)
		synctest.Wait()
		close(answer)
		for who, got := range map[string]gotten{"first": <-first, "late": <-late} {
			if got.value != "v1" || got.err != nil {
				r.Errorf("the %s caller gets %q, %v", who, got.value, got.err)
			}
		}
		if n := reads.Load(); n != 2 {
			r.Errorf("%d reads, want 2: without a second flight this tests nothing", n)
		}
		m.Before(nil)
	})
}

// A load that asks for another key, alone or in a page, whose load asks for the first, would wait
// for itself until the load timeout.
func TestALoadThatAsksForItsOwnKeyOverAnotherIsTold(t *testing.T) {
	for _, way := range []string{"Load", "LoadMany", "LoadMany for a page"} {
		t.Run(way, func(t *testing.T) {
			inCells(t, fewCells, func(r *rig) {
				var c *probe[int64, string]
				one := func(ctx context.Context, key int64) (string, error) { return c.Get(ctx, 3-key) }
				c = open(r, map[string]cache.Source[int64, string]{
					"Load": {Load: one},
					"LoadMany": {LoadMany: func(ctx context.Context, keys []int64) (map[int64]string, error) {
						value, err := one(ctx, keys[0])
						return map[int64]string{keys[0]: value}, err
					}},
					"LoadMany for a page": {LoadMany: func(ctx context.Context, keys []int64) (map[int64]string, error) {
						if slices.Contains(keys, 1) {
							return c.GetMany(ctx, []int64{2, 3})
						}
						_, err := c.Get(ctx, 1)
						return nil, err
					}},
				}[way], unheld)
				began := time.Now()
				if _, err := c.Get(r.ctx, 1); !errors.Is(err, cache.ErrReentrant) {
					r.Errorf("Get: %v, want ErrReentrant", err)
				}
				if _, err := c.GetMany(r.ctx, []int64{1}); !errors.Is(err, cache.ErrReentrant) {
					r.Errorf("GetMany: %v, want ErrReentrant", err)
				}
				if took := time.Since(began); took > 3*time.Second { // the load has five
					r.Errorf("they took %v", took)
				}
			})
		})
	}
}

// The load of a caller who has waited for another process for WaitBudget is one without
// a lease, within the limits of those.
func TestAWaiterLoadsByItselfWhenItsBudgetIsSpent(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source, quick, gate := newRows(r, 1), newRows(r, 1), newLatch()
		source.slowly(gate.wait)
		c := open(r, source.source())
		other := open(r, quick.source(), func(o *cache.Options) { o.Rebuild.WaitBudget = 400 * time.Millisecond })
		loading := c.getting(r.ctx, 1)
		gate.arrived(r)
		began := time.Now()
		other.gives(r, 1, "v1")
		if took := time.Since(began); took != 400*time.Millisecond {
			r.Errorf("it waited for %v", took)
		}
		if s := other.Stats(); s.Degraded != 1 || s.Rebuild.GaveUp != 1 || s.Loads != 1 {
			r.Errorf("want one load without a lease: %+v", s)
		}
		close(gate.open)
		<-loading
	})
}
