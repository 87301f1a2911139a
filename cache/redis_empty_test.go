package cache_test

import (
	"context"
	"testing"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Redis loses its scripts with the data, and all that it knew of other processes.
func TestARedisThatComesBackEmptyIsFilledAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real", local: true})
	source := newRows(r, 1, 2)
	c, other := open(r, source.source()), open(r, source.source())
	for range 3 {
		server.Restart()
		r.eventually("everybody is connected again", func() bool { return c.Stats().Live && other.Stats().Live })
		r.eventually("a value is published", func() bool {
			_ = c.Invalidate(r.ctx, 2) // on a connection that is broken it may fail
			_, err := c.Get(r.ctx, 2)
			return err == nil && r.rdb.Exists(r.ctx, valueKey(2)).Val() == 1
		})
		if got := other.comesFrom(r, 2, cache.TierLocal); got.Value != "v1" {
			r.Errorf("%+v", got)
		}
	}
}

func TestALostScriptCacheCostsNobodyAnError(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source := newRows(r, 1, 2, 3)
	c := open(r, source.source())
	for i := range 50 {
		if err := r.rdb.ScriptFlush(r.ctx).Err(); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if err := c.Invalidate(r.ctx, 1, 2, 3); err != nil { // these go in one pipeline, which has no fallback of its own
				t.Error(err)
			}
		} else if err := c.Write(r.ctx, []int64{1}, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if err := r.rdb.ScriptFlush(r.ctx).Err(); err != nil {
			t.Fatal(err)
		}
		c.gives(r, 1, "v1")
		if err := c.Set(r.ctx, 2, "v1"); err != nil {
			t.Error(err)
		}
		c.comesFrom(r, 2, cache.TierRedis)
	}
	if s := c.Stats(); s.Rebuild.Unknown != 0 || s.Degraded != 0 {
		t.Errorf("%+v", s)
	}
}
