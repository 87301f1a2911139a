package lock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// Hand-offs for as long as LEVEE_LONG says, while messages are dropped and
// subscriptions killed now and then: nobody is stuck, each of them is served.
func TestSoakHandOffs(t *testing.T) {
	end := time.Now().Add(redistest.Long(t))
	s := redistest.Start(t)
	rdb := s.Client(t)
	p := redistest.Proxy(t, s.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := crowd{pause: time.Microsecond}
	var all sync.WaitGroup
	for i, o := range []lock.Options{{}, {}, {}, {StrictFIFO: true}} {
		rdb := s.Client(t)
		if i%2 == 1 {
			rdb = p.Client(t, quick)
		}
		l := open(t, rdb, o)
		c.join(ctx, t, &all, l, 10)
		c.pass(ctx, t, &all, l, 2)
	}
	drops, kills := 0, 0
	for time.Now().Before(end) {
		time.Sleep(rand.N(5 * time.Second))
		if rand.IntN(2) == 0 {
			p.DropMessages(true)
			time.Sleep(rand.N(time.Second))
			p.DropMessages(false)
			drops++
		} else {
			kills += int(rdb.ClientKillByFilter(ctx, "TYPE", "pubsub").Val())
		}
		c.progress(t, 1)
	}
	cancel()
	all.Wait()
	stuck := 0
	if c.longest > time.Minute { // it takes seconds if messages are missing
		stuck++
		t.Errorf("somebody waited %v", c.longest)
	}
	t.Logf("%d hand-offs, %d stuck; messages dropped %d times, %d subscriptions killed; the longest wait was %v, the longest gap %v; %d calls failed",
		c.served, stuck, drops, kills, c.longest, c.gap, c.failures)
}
