package cache_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/levee-go/levee/cache"
)

// written opens a cache that holds v1 of key 1, with v2 in the source.
func written(r *rig) (*probe[int64, string], *rows) {
	source := newRows(r, 1)
	c := open(r, source.source())
	c.gives(r, 1, "v1")
	c.comesFrom(r, 1, r.near())
	return c, source
}

func TestWriteRunsTxAndInvalidates(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		c, source := written(r)
		type key struct{}
		ctx := context.WithValue(r.ctx, key{}, "mine")
		err := c.Write(ctx, []int64{1, 2}, func(ctx context.Context) error {
			if ctx.Value(key{}) != "mine" {
				r.Error("tx does not get the caller's context")
			}
			source.put(1, "v2")
			source.put(2, "new") // this one the filter learns
			return nil
		})
		if err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v2")
		c.gives(r, 2, "new")
		c.comesFrom(r, 2, r.near()) // the keys are open again
	})
}

// A transaction that reports failure may have committed all the same.
func TestWriteGivesTheErrorOfTxAndInvalidates(t *testing.T) {
	failed := errors.New("connection lost during commit")
	inCells(t, everyCell(), func(r *rig) {
		c, source := written(r)
		err := c.Write(r.ctx, []int64{1}, func(context.Context) error {
			source.put(1, "v2")
			return failed
		})
		if !errors.Is(err, failed) || errors.Is(err, cache.ErrUnavailable) {
			r.Errorf("Write: %v", err)
		}
		c.gives(r, 1, "v2")
	})
}

func TestAPanicOfTxGoesOnAndInvalidates(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		c, source := written(r)
		func() {
			defer func() {
				if got := recover(); got != "bug in tx" {
					r.Errorf("recovered %v", got)
				}
			}()
			_ = c.Write(r.ctx, []int64{1}, func(context.Context) error {
				source.put(1, "v2")
				panic("bug in tx")
			})
			r.Error("Write returns")
		}()
		c.gives(r, 1, "v2")
		c.comesFrom(r, 1, r.near())
	})
}

// As t.FailNow does in a test of the user's.
func TestAGoexitOfTxInvalidates(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		c, source := written(r)
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = c.Write(r.ctx, []int64{1}, func(context.Context) error {
				source.put(1, "v2")
				runtime.Goexit()
				return nil
			})
			r.Error("Write returns")
		})
		wg.Wait()
		c.gives(r, 1, "v2")
		c.comesFrom(r, 1, r.near())
	})
}

// Without a context of its own the invalidation would not be sent.
func TestWriteInvalidatesThoughTheCallerHasLeft(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		c, source := written(r)
		ctx, cancel := context.WithCancel(r.ctx)
		err := c.Write(ctx, []int64{1}, func(context.Context) error {
			source.put(1, "v2")
			cancel()
			return nil
		})
		if err != nil { // tx has succeeded and the keys are invalidated: there is nothing to report
			r.Errorf("Write: %v", err)
		}
		c.gives(r, 1, "v2")
	})
}

func TestWriteDoesNothingWithAnEndedContext(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		c, source := written(r)
		loads := source.loads(1)
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		err := c.Write(ctx, []int64{1}, func(context.Context) error { r.Error("tx runs"); return nil })
		if !errors.Is(err, context.Canceled) {
			r.Errorf("Write: %v", err)
		}
		c.gives(r, 1, "v1")
		if r.kept() && source.loads(1) != loads {
			r.Error("the key has been invalidated")
		}
	})
}

func TestWriteOfNothing(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		c, _ := written(r)
		ran := false
		if err := c.Write(r.ctx, nil, func(context.Context) error { ran = true; return nil }); err != nil || !ran {
			r.Errorf("Write without keys: ran %v, %v", ran, err)
		}
		if err := c.Write(r.ctx, []int64{1}, nil); err == nil {
			r.Error("Write without tx")
		}
	})
}

// Readers during a write see one or the other value, and none of it stays. The
// hold is what this tests: without it, who reads v1 during tx publishes it, and
// without the second invalidation it would stay.
func TestNothingReadDuringAWriteIsKept(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		c, source := written(r)
		err := c.Write(r.ctx, []int64{1}, func(context.Context) error {
			for range 3 {
				got, err := c.Fetch(r.ctx, 1) // the transaction has not committed
				if err != nil || got.Value != "v1" || r.rdb != nil && got.Tier != cache.TierSource {
					r.Errorf("during the write: %+v, %v", got, err)
				}
				if r.rdb != nil && r.rdb.Exists(r.ctx, "test:1").Val() != 0 {
					r.Error("a value has been published during the write")
				}
			}
			source.put(1, "v2")
			return nil
		})
		if err != nil {
			r.Fatal(err)
		}
		for range 20 {
			c.gives(r, 1, "v2")
		}
		c.comesFrom(r, 1, r.near())
	})
}

// The first writer to end must not open the key for readers of the second.
func TestHoldsOfTwoWritersStandSideBySide(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "real", local: true}}, func(r *rig) {
		c, source := written(r)
		other := open(r, source.source())
		err := c.Write(r.ctx, []int64{1}, func(context.Context) error {
			err := other.Write(r.ctx, []int64{1}, func(context.Context) error { return nil })
			c.gives(r, 1, "v1")
			if r.rdb.Exists(r.ctx, "test:1").Val() != 0 {
				r.Error("the key is open")
			}
			source.put(1, "v2")
			return err
		})
		if err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v2")
		c.comesFrom(r, 1, r.near())
	})
}
