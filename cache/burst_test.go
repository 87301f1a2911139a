package cache_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
)

// Two thousand cold keys at once, with the options and the connections that there are by
// default: what callers wait for in their own process is not Redis' silence. Where each
// read has a connection of its own, hundreds take longer than RedisTimeout to get one,
// which was taken for an outage, under the race detector in every burst, and all later
// loads were degraded. On a busy machine Redis itself may be silent for that long, so it
// is enough that two of six are none.
func TestABurstOfColdKeysIsNoOutage(t *testing.T) {
	server := start(t)
	rdb := server.Client(t)
	var none int // the second time with a pool that is there
	for range 6 {
		load := func(context.Context, int64) (string, error) { time.Sleep(5 * time.Millisecond); return "v", nil }
		c := must(cache.New(rdb, load, cache.Options{Name: "burst", Logger: slog.New(slog.DiscardHandler)}))
		var all sync.WaitGroup
		for key := range int64(2000) {
			all.Go(func() { _, _ = c.Get(t.Context(), key) })
		}
		all.Wait()
		s := c.Stats()
		_ = c.Close()
		rdb.FlushAll(t.Context())
		if s.Rebuild.Outages == 0 {
			none++
		}
		if none == 2 {
			return
		}
		t.Logf("%d outages, %d loads, of which %d degraded", s.Rebuild.Outages, s.Loads, s.Degraded)
	}
	t.Errorf("%d of 6 bursts were no outage, want 2", none)
}
