package cache_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
)

// refreshing is a Refresh that goes on beside the test.
func (p *probe[K, V]) refreshing(ctx context.Context, keys ...K) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- p.Refresh(ctx, keys...) }()
	return ended
}

// settle waits in a bubble until nobody has anything to do: what was filled is there.
func (r *rig) settle() {
	if r.redis != "real" {
		synctest.Wait()
	}
}

// An Invalidate and a Get would have the readers wait for the load.
func TestARefreshedValueIsForEverybodyAndTheOldOneAnswersUntilThen(t *testing.T) {
	cells := []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real", local: true}, {redis: "none", local: true}}
	inCells(t, cells, func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		c := open(r, source.source())
		caches := []*probe[int64, string]{c}
		if r.rdb != nil {
			caches = append(caches, open(r, source.source()))
		}
		for _, c := range caches {
			c.gives(r, 1, "v1")
			r.settle()
			c.comesFrom(r, 1, r.near())
		}
		source.put(1, "v2")
		source.slowly(gate.wait)
		ended := c.refreshing(r.ctx, 1)
		gate.arrived(r)
		for _, c := range caches {
			c.gives(r, 1, "v1")
		}
		close(gate.open)
		if err := <-ended; err != nil {
			r.Errorf("Refresh: %v", err)
		}
		r.settle()
		c.gives(r, 1, "v2")
		for _, c := range caches {
			r.eventually("the message has arrived", func() bool { got, err := c.Get(r.ctx, 1); return err == nil && got == "v2" })
		}
		if n := source.loads(1); n != 2 {
			r.Errorf("%d loads, want the first and that of Refresh", n)
		}
	})
}

// The load under way has read the row before it was changed.
func TestRefreshTakesTheLeaseFromALoadThatBeganBefore(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		c := open(r, source.source())
		source.slowly(gate.wait)
		early := c.getting(r.ctx, 1)
		gate.arrived(r)
		source.slowly(nil)
		source.put(1, "v2")
		if err := c.Refresh(r.ctx, 1); err != nil {
			r.Fatal(err)
		}
		late := c.getting(r.ctx, 1)
		synctest.Wait()
		close(gate.open)
		if got := <-early; got.err != nil {
			r.Errorf("the early caller: %v", got.err)
		}
		if got := <-late; got.value != "v2" || got.err != nil {
			r.Errorf("the caller after Refresh gets %q, %v", got.value, got.err)
		}
		c.gives(r, 1, "v2")
	})
}

// Without the second load, or without the lease that the writer takes away, the value
// from before the write would stay.
func TestAWriterWhoOvertakesARefreshIsNotOverwritten(t *testing.T) {
	for name, write := range map[string]func(*rig, *probe[int64, string]) error{
		"Invalidate": func(r *rig, c *probe[int64, string]) error { return c.Invalidate(r.ctx, 1) },
		"Refresh":    func(r *rig, c *probe[int64, string]) error { return c.Refresh(r.ctx, 1) },
		"Set":        func(r *rig, c *probe[int64, string]) error { return c.Set(r.ctx, 1, "v2") },
		"Write": func(r *rig, c *probe[int64, string]) error {
			return c.Write(r.ctx, []int64{1}, func(context.Context) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
				source, gate := newRows(r, 1), newLatch()
				c := open(r, source.source())
				c.gives(r, 1, "v1")
				source.slowly(gate.wait)
				ended := c.refreshing(r.ctx, 1)
				gate.arrived(r) // it has read v1
				source.slowly(nil)
				source.put(1, "v2")
				if err := write(r, c); err != nil {
					r.Fatal(err)
				}
				c.gives(r, 1, "v2")
				close(gate.open)
				if err := <-ended; err != nil {
					r.Errorf("Refresh: %v", err)
				}
				for range 3 {
					c.gives(r, 1, "v2")
				}
			})
		})
	}
}

func TestTheOldValueStaysWhereARefreshFails(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1, 2)
		c := open(r, source.source())
		c.givesMany(r, []int64{1, 2}, "v1")
		source.put(1, "v2")
		source.put(2, "v2")
		source.slowly(func(_ context.Context, key int64) error {
			if key == 2 {
				return errBroken
			}
			return nil
		})
		err := c.Refresh(r.ctx, 1, 2, 1)
		var batch *cache.BatchError[int64]
		if !errors.As(err, &batch) || len(batch.Causes) != 1 || !errors.Is(batch.Causes[2], errBroken) {
			r.Errorf("Refresh: %v", err)
		}
		c.gives(r, 1, "v2")
		c.gives(r, 2, "v1")
	})
}

func TestARefreshOfWhatHasGoneIsNotFound(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		source.slowly(func(context.Context, int64) error { return cache.ErrNotFound })
		if err := c.Refresh(r.ctx, 1); err != nil {
			r.Error(err)
		}
		c.gives404(r, 1)
	})
}

// The writer drops the value at its end anyway, and until then nothing is published.
func TestARefreshBesideAWriterPublishesNothing(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		c, source := written(r)
		err := c.Write(r.ctx, []int64{1}, func(context.Context) error {
			c.gives(r, 1, "v1") // is shared
			source.put(1, "v2")
			if err := c.Refresh(r.ctx, 1); err != nil {
				r.Error(err)
			}
			if r.rdb.Exists(r.ctx, valueKey(1)).Val() != 0 {
				r.Error("a value has been published during the write")
			}
			c.gives(r, 1, "v2")
			return nil
		})
		if err != nil {
			r.Error(err)
		}
		c.gives(r, 1, "v2")
	})
}

func TestARefreshOfManyIsOneLoad(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newBatches(r, 1, 200)
		c := open(r, source.source())
		c.givesMany(r, upTo(1, 200), "v1")
		for key := range int64(200) {
			source.put(1+key, "v2")
		}
		source.forget()
		if err := c.Refresh(r.ctx, upTo(1, 200)...); err != nil {
			r.Error(err)
		}
		if _, calls := source.loads(); calls != 1 {
			r.Errorf("%d calls", calls)
		}
		c.givesMany(r, upTo(1, 200), "v2")
	})
}

// Keys whose loads fail, and those that a writer holds, go together too. Catches a round trip for
// each of them.
func TestARefreshOfManyThatDoesNotGoWellTakesFewRoundTrips(t *testing.T) {
	for _, held := range []bool{false, true} {
		inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
			source, sent := newBatches(r, 1, 100), &traffic{}
			c := openOn(r, r.watched(sent), source.source())
			c.givesMany(r, upTo(1, 100), "v1")
			refresh := func(context.Context) error {
				sent.since()
				err := c.Refresh(r.ctx, upTo(1, 100)...)
				commands, pipelines := sent.since()
				if held != (err == nil) || commands+pipelines > 4 {
					r.Errorf("held %v: %v; %d commands and %d pipelines", held, err, commands, pipelines)
				}
				return nil
			}
			if held {
				r.do(c.Write(r.ctx, upTo(1, 100), refresh))
				return
			}
			source.slowly(func(context.Context, []int64) error { return errBroken })
			r.do(refresh(r.ctx))
		})
	}
}

func TestRefreshReturnsWithItsContextAndItsLoadGoesOn(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		source.put(1, "v2")
		source.slowly(gate.wait)
		ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
		defer cancel()
		if err := c.Refresh(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			r.Errorf("Refresh: %v", err)
		}
		close(gate.open)
		synctest.Wait()
		c.gives(r, 1, "v2")
	})
}

func TestALoadThatRefreshesItsOwnKeyIsTold(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "none"}}, func(r *rig) {
		var c *probe[int64, string]
		c = open(r, cache.Source[int64, string]{Load: func(ctx context.Context, key int64) (string, error) {
			if err := c.Refresh(ctx, key); !errors.Is(err, cache.ErrReentrant) {
				r.Errorf("Refresh: %v", err)
			}
			return "v1", nil
		}})
		r.known(1)
		c.gives(r, 1, "v1")
	})
}

func TestSetManyAnswersForItsKeys(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r)
		c := open(r, source.source())
		values := map[int64]string{}
		for _, key := range upTo(1, 300) {
			values[key] = "set"
		}
		if err := c.SetMany(r.ctx, values); err != nil {
			r.Fatal(err)
		}
		if r.rdb != nil {
			c.givesMany(r, upTo(1, 300), "set")
			if n := source.all(); n != 0 {
				r.Errorf("%d loads", n)
			}
		}
	})
}

// With one value that cannot be stored the others are.
func TestSetManyOfAnOversizeValueDropsTheOldOne(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source := newRows(r, 1, 2)
		c := open(r, source.source(), func(o *cache.Options) { o.MaxValue = 10 })
		c.givesMany(r, []int64{1, 2}, "v1")
		source.put(1, "new")
		if err := c.SetMany(r.ctx, map[int64]string{1: "more than ten bytes", 2: "set"}); err != nil {
			r.Error(err)
		}
		c.gives(r, 1, "new")
		c.gives(r, 2, "set")
	})
}
