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
// which was taken for an outage, and all later loads were degraded.
func TestABurstOfColdKeysIsNoOutage(t *testing.T) {
	server := start(t)
	rdb := server.Client(t)
	for range 2 { // the second time with a pool that is there
		load := func(context.Context, int64) (string, error) { time.Sleep(5 * time.Millisecond); return "v", nil }
		c := must(cache.New(rdb, load, cache.Options{Name: "burst", Logger: slog.New(slog.DiscardHandler)}))
		var all sync.WaitGroup
		for key := range int64(2000) {
			all.Go(func() { _, _ = c.Get(t.Context(), key) })
		}
		all.Wait()
		if s := c.Stats(); s.Rebuild.Outages != 0 {
			t.Errorf("%d outages, %d loads, of which %d degraded", s.Rebuild.Outages, s.Loads, s.Degraded)
		}
		_ = c.Close()
		rdb.FlushAll(t.Context())
	}
}
