package cache_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Invalidations free memory, and clears need next to none, so a full Redis must accept them. It may
// refuse fills, which are not tried again and again. Catches a clear that begins with HSET: it stays
// pending, and its process takes nothing from Redis until there is room.
func TestAFullRedisStillInvalidates(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
	r := onServer(t, server, cell{redis: "real"})
	const many = 50
	source := newRows(r, 1, 2, 100)
	for key := int64(3); key < 3+many; key++ {
		source.put(key, "v1")
	}
	rdb, commands := r.client(), new(sent)
	rdb.AddHook(commands)
	c := openOn(r, rdb, source.tagged())
	c.gives(r, 1, "v1")
	c.gives(r, 100, "v1")
	blocks := 0
	fill := func() {
		for _, size := range []int{100_000, 1000, 10} {
			for r.rdb.Set(r.ctx, fmt.Sprint("foreign:", blocks), strings.Repeat("x", size), time.Hour).Err() == nil {
				blocks++
			}
		}
	}
	fill()
	c.gives(r, 1, "v1")
	before, began := commands.Load(), time.Now()
	for key := int64(3); key < 3+many; key++ {
		c.gives(r, key, "v1")
	}
	heartbeats := 2 * (2 + int64(time.Since(began)/time.Second)) // each with a look at the epoch, some begun before
	if n := commands.Load() - before; n > 3*many+heartbeats {
		t.Errorf("%d commands for %d Gets", n, many)
	} else {
		t.Logf("%.2f commands a Get", float64(n)/many)
	}
	source.put(1, "v2")
	if err := c.Invalidate(r.ctx, 1); err != nil {
		t.Errorf("Invalidate: %v", err)
	}
	c.gives(r, 1, "v2")
	source.put(1, "v3")
	if err := c.Write(r.ctx, []int64{1}, func(context.Context) error { return nil }); err != nil {
		t.Errorf("Write: %v", err)
	}
	c.gives(r, 1, "v3")
	source.put(2, "v2")
	c.gives(r, 2, "v2")
	source.put(2, "v3")
	if err := c.Set(r.ctx, 2, strings.Repeat("y", 100_000)); err != nil && !errors.Is(err, cache.ErrNotInvalidated) {
		t.Errorf("Set: %v", err)
	}
	source.put(1, "v4")
	fill()
	if err := cache.Write(r.ctx, func(context.Context) error { return nil }, c.Tagged(tenant(0))); err != nil {
		t.Errorf("Write: %v", err)
	}
	c.comesFrom(r, 100, cache.TierRedis)
	source.put(1, "v5")
	fill()
	if err := c.ClearTags(r.ctx, tenant(0)); err != nil {
		t.Errorf("ClearTags: %v", err)
	}
	c.gives(r, 1, "v5")
	c.comesFrom(r, 100, cache.TierRedis)
	r.do(r.rdb.Del(r.ctx, clearsKey()).Err())
	fill()
	later := open(r, source.tagged())
	r.eventually("a process that starts now has read what was cleared", func() bool { return later.Stats().Live })
	source.put(100, "v2")
	fill()
	if err := c.Clear(r.ctx); err != nil {
		t.Errorf("Clear: %v", err)
	}
	c.gives(r, 100, "v2")
	if s := c.Stats().Rebuild; s.Unconfirmed > 0 {
		t.Errorf("%d invalidations are not confirmed", s.Unconfirmed)
	}
}

// sent counts the commands of a client.
type sent struct{ atomic.Int64 }

func (s *sent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.Add(1)
		return next(ctx, cmd)
	}
}

func (s *sent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}
