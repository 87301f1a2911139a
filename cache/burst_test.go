package cache_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Two thousand cold keys at once, with the options and the connections that there are by
// default: what callers wait for in their own process is not Redis' silence. Where each
// read has a connection of its own, hundreds take longer than RedisTimeout to get one,
// which was taken for an outage, under the race detector in every burst, and all later
// loads were degraded: up to 96 % of the callers got an error. On a busy machine Redis
// itself may be silent for that long, so it is enough that two of six are none, and the breaker
// turns callers away by how long its places are held: up to half of them beside other programs
// on two cores. Nobody gets another error. That nobody is turned away otherwise is the next test.
func TestABurstOfColdKeysIsNoOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	var none int // the second time with a pool that is there
	for range 6 {
		load := func(context.Context, int64) (string, error) { time.Sleep(5 * time.Millisecond); return "v", nil }
		c := redistest.Must(cache.New(rdb, load, cache.Options{Name: "burst", Logger: slog.New(slog.DiscardHandler)}))
		errs := burst(t, c.Get)
		s := c.Stats()
		_ = c.Close()
		rdb.FlushAll(t.Context())
		for _, err := range errs {
			if !errors.Is(err, breaker.ErrLimited) {
				t.Error(err)
			}
		}
		t.Logf("%d outages, %d loads, of which %d degraded, %d of 2,000 Gets turned away", s.Rebuild.Outages, s.Loads, s.Degraded, len(errs))
		if s.Rebuild.Outages == 0 {
			none++
		}
		if none == 2 {
			return
		}
	}
	t.Errorf("%d of 6 bursts were no outage, want 2", none)
}

// In a bubble, where the machine does not matter, everybody gets a value, by a load of its own.
func TestABurstOfColdKeysFailsNobody(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		load := func(context.Context, int64) (string, error) { time.Sleep(5 * time.Millisecond); return "v", nil }
		c := redistest.Must(cache.New(r.rdb, load, cache.Options{Name: "burst", Logger: slog.New(slog.DiscardHandler)}))
		defer c.Close()
		for _, err := range burst(r, c.Get) {
			r.Error(err)
		}
		if s := c.Stats(); s.Loads != 2000 || s.Degraded > 0 || s.Rebuild.Outages > 0 {
			r.Errorf("%+v", s)
		}
	})
}

// burst gets 2,000 keys at once, and returns the errors.
func burst(t testing.TB, get func(context.Context, int64) (string, error)) []error {
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	for key := range int64(2000) {
		all.Go(func() {
			v, err := get(t.Context(), key)
			if err == nil && v != "v" {
				t.Errorf("key %d is %q", key, v)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	all.Wait()
	return errs
}
