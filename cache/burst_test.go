package cache_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
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
// itself may be silent for that long, so it is enough that two of six are none. Callers whom
// the breaker turns away are right to be so only where loads took much longer than the 5 ms
// that they sleep: at 40 ms all 2,000 have had their turn, in 64 places, after 1.3 of the 5 s
// that they may wait.
func TestABurstOfColdKeysIsNoOutage(t *testing.T) {
	server := start(t)
	rdb := server.Client(t)
	var none int // the second time with a pool that is there
	for range 6 {
		var slowest atomic.Int64
		load := func(context.Context, int64) (string, error) {
			began := time.Now()
			time.Sleep(5 * time.Millisecond)
			for took, n := int64(time.Since(began)), slowest.Load(); took > n && !slowest.CompareAndSwap(n, took); n = slowest.Load() {
			}
			return "v", nil
		}
		c := must(cache.New(rdb, load, cache.Options{Name: "burst", Logger: slog.New(slog.DiscardHandler)}))
		errs := burst(t, c.Get)
		s := c.Stats()
		_ = c.Close()
		rdb.FlushAll(t.Context())
		crowded := s.Rebuild.Outages > 0 || time.Duration(slowest.Load()) > 40*time.Millisecond
		for _, err := range errs {
			if !crowded || !errors.Is(err, breaker.ErrLimited) {
				t.Errorf("%d outages, the slowest load took %v, and a Get fails: %v", s.Rebuild.Outages, time.Duration(slowest.Load()), err)
				break
			}
		}
		t.Logf("%d outages, %d loads, of which %d degraded, the slowest %v, %d errors", s.Rebuild.Outages, s.Loads, s.Degraded, time.Duration(slowest.Load()), len(errs))
		if s.Rebuild.Outages == 0 {
			none++
		}
		if none == 2 {
			return
		}
	}
	t.Errorf("%d of 6 bursts were no outage, want 2", none)
}

// The same where the machine does not matter: everybody gets a value, by a load of its own.
func TestABurstOfColdKeysFailsNobody(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		load := func(context.Context, int64) (string, error) { time.Sleep(5 * time.Millisecond); return "v", nil }
		c := must(cache.New(r.rdb, load, cache.Options{Name: "burst", Logger: slog.New(slog.DiscardHandler)}))
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
