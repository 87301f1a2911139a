package linear

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A caller's own read of Redis has no number: it began after its Get, and that is enough for
// the caller. What it brings also fills the local tier, for Gets that begin later; there the
// mark from before the read has to stop what an invalidation has overtaken. Readers of one
// process race its writer, while another process publishes what it loads.
func TestAGetAfterAnInvalidationSeesNothingOlder(t *testing.T) {
	s := redistest.Start(t)
	raceOwnReads(t, time.Second, func() *redis.Client { return s.Client(t) })
}

// The same in a bubble, where each command takes its time on the way, on any machine.
func TestAGetInABubbleSeesNothingOlder(t *testing.T) {
	length := 200 * time.Millisecond
	if os.Getenv(insistent) != "" {
		length = 5 * time.Second
	}
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * time.Millisecond) // for those who are on their way at the end
		raceOwnReads(t, length, farAway(t))
	})
}

func raceOwnReads(t *testing.T, length time.Duration, dial func() *redis.Client) {
	var row, invalidated atomic.Int64
	source := func(context.Context, int64) (int64, error) { return row.Load(), nil }
	open := func(o cache.Options) *cache.Cache[int64, int64] {
		o.Name, o.Logger, o.RedisTimeout = "own", slog.New(slog.DiscardHandler), 5*time.Second
		c, err := cache.New(dial(), source, o)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	own, other := open(cache.Options{}), cache.Options{}
	other.Local.MaxBytes = -1
	publisher := open(other)
	defer own.Close()
	defer publisher.Close()

	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	var gets, hits atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				oldest := invalidated.Load()
				got, err := own.Fetch(t.Context(), 1)
				if err != nil {
					t.Error(err)
				}
				if gets.Add(1); got.Tier == cache.TierRedis {
					hits.Add(1)
				}
				if got.Tier == cache.TierLocal {
					time.Sleep(20 * time.Microsecond) // the processor is the writer's too
				}
				if got.Value < oldest {
					t.Errorf("a Get that began after Invalidate of %d had returned gives %d, from %v", oldest, got.Value, got.Tier)
					stop()
				}
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := publisher.Get(t.Context(), 1); err != nil {
				t.Error(err)
			}
		}
	})
	for ctx.Err() == nil {
		version := row.Add(1)
		if err := own.Invalidate(t.Context(), 1); err != nil {
			t.Error(err)
		}
		invalidated.Store(version)
		time.Sleep(time.Duration(version%8) * 100 * time.Microsecond)
	}
	wg.Wait()
	t.Logf("%d Gets, of which %d found in Redis, beside %d invalidations", gets.Load(), hits.Load(), row.Load())
	if hits.Load() == 0 {
		t.Error("no Get read Redis for itself: this tests nothing")
	}
}
