package fleet_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/fleet"
)

// wantsAReplica makes a group that wants one more replica than there is, and waits so long for it.
func (r *rig) wantsAReplica(timeout time.Duration) *fleet.Group {
	r.Helper()
	space := fleet.Keyspace{Name: "p", Logger: slog.New(slog.DiscardHandler), RedisTimeout: timeout}
	g, err := fleet.New(r.client(), space, fleet.Options{WaitReplicas: 1}, fleet.Messages{Cleared: func() {}})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(g.Close)
	r.eventually("messages arrive", g.Live)
	return g
}

// What is invalidated while Redis hangs is used again when it is back, though no replica confirms it. Ten
// seconds later 491 of 500 ids were blocked, and one was freed a second.
func TestAMissingReplicaDoesNotDelayTheEndOfAnOutage(t *testing.T) {
	t.Parallel()
	for _, n := range []int{500, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			r := onServer(t)
			g := r.wantsAReplica(250 * time.Millisecond)
			ids := make([]string, n)
			for i := range ids {
				ids[i] = fmt.Sprint(i)
			}
			r.server.Stop()
			if err := g.Invalidate(r.ctx, ids...); !errors.Is(err, fleet.ErrUnavailable) {
				r.Fatalf("Redis hangs: %v", err)
			}
			r.server.Cont()
			r.eventually("all ids are used again", func() bool {
				for _, value := range g.Get(r.ctx, ids...) {
					if value.Err != nil {
						return false
					}
				}
				return true
			})
			r.checkStats(g, "they wait for the replica", func(s fleet.Stats) bool { return s.Unconfirmed == n && s.Dropped == 0 })
		})
	}
}

// A replica that is known to be missing costs a writer no time, and what waits for it is left alone. Each
// Invalidate took RedisTimeout, so that a follower of a feed did four transactions a second, and a Clear
// was repeated every second.
func TestWhileAReplicaIsMissingNobodyWaitsForIt(t *testing.T) {
	t.Parallel()
	r := onServer(t)
	// A busy machine needs the same again for the command. An attempt that ends by its time is a failure, which may have
	// been a failover: after it everything is cleared once more.
	const timeout = 2 * time.Second
	g := r.wantsAReplica(timeout)
	wants := func(what string, err error) {
		r.Helper()
		if !errors.Is(err, fleet.ErrUnavailable) || !errors.Is(err, fleet.ErrTooFewReplicas) {
			r.Errorf("%s: %v", what, err)
		}
	}
	wants("Invalidate", g.Invalidate(r.ctx, "x"))
	wants("Clear", g.Clear(r.ctx))
	epoch := g.Epoch()
	waits := func() int64 { return r.server.Calls("wait") }
	looked := waits()
	r.eventually("it looks for the replica", func() bool { return waits() > looked })
	r.eventually("no writer asks it any more", func() bool {
		before, began := waits(), time.Now()
		for i := range 100 {
			wants("Invalidate", g.Invalidate(r.ctx, fmt.Sprint(i)))
		}
		return waits()-before <= 1+int64(time.Since(began)/timeout)
	})
	r.publishes(g, "x", "v")
	looked = waits()
	r.eventually("it looks again", func() bool { return waits() > looked+1 })
	r.finds(g, "x", "v")
	if g.Epoch() != epoch {
		r.Error("everything was cleared once more")
	}
}
