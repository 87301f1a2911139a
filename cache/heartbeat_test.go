package cache_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// The link of a client may be live before a cache is made, or become so meanwhile. If
// New or the subscription forgot that, the local tier would be distrusted until the
// link next fails: entries would count for a second instead of thirty.
func TestAHeartbeatDuringNewIsNotForgotten(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	for _, live := range []bool{true, false} {
		for range redistest.Pick(5, 500) {
			rdb := server.Client(t)
			link := redisconn.OpenLink(rdb) // the one that the cache has
			if live {
				r.eventually("the link lives", link.Live)
			} else {
				time.Sleep(rand.N(3 * time.Millisecond))
			}
			c := redistest.Must(cache.New(rdb, newRows(r, 1).load, r.options(nil)))
			r.eventually("the local tier is trusted", func() bool { return !c.Stats().LocalTier.Distrusted })
			_ = c.Close()
			link.Close()
			_ = rdb.Close()
		}
	}
}
