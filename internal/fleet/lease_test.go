package fleet_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// The steps of a rebuild, for many ids in one call: two are granted, one of them is
// invalidated before the commit, and what was built of it may be old.
func TestAnInvalidationTakesOneLeaseOfManyAway(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(fleet.Keyspace{}), r.group(fleet.Keyspace{})
		var built []fleet.Publication
		for i, grant := range g.Begin(r.ctx, fleet.Ask{ID: "a"}, fleet.Ask{ID: "b"}) {
			if grant.Verdict != fleet.Granted {
				r.Fatalf("ask %d gets %+v", i, grant)
			}
			built = append(built, publication(grant.Lease, "built"))
		}
		for i, grant := range other.Begin(r.ctx, fleet.Ask{ID: "a"}, fleet.Ask{ID: "b"}) {
			if grant.Verdict != fleet.Busy {
				r.Errorf("beside the holder, ask %d gets %+v", i, grant)
			}
		}
		r.must(other.Invalidate(r.ctx, "b"))
		if out := g.Commit(r.ctx, built...); !out[0].Published || out[1].Published || out[0].Err != nil || out[1].Err != nil {
			r.Errorf("published: %+v, want the first alone", out)
		}
		r.finds(other, "a", "built")
		r.finds(other, "b", "")
	})
}

// A writer keeps its ids closed: nobody is granted their leases until it lifts its hold.
func TestNobodyIsGrantedTheLeaseOfAHeldID(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(fleet.Keyspace{})
		end, err := g.Hold(r.ctx, 0, "a")
		r.must(err)
		if asked := r.group(fleet.Keyspace{}).Begin(r.ctx, fleet.Ask{ID: "a"})[0]; asked.Verdict != fleet.Held || asked.Remaining <= 0 {
			r.Errorf("under a hold it gets %+v", asked)
		}
		r.must(end(r.ctx, true))
		r.publishes(g, "a", "new")
	})
}

// A Set beside another writer's hold publishes, ends its own lease and leaves the hold, with
// what is left of its time.
//
// Catches a commit that deletes the whole lease, and one that gives the hold another end.
func TestASetLeavesTheHoldsOfOthers(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, writer := r.group(fleet.Keyspace{}), r.group(fleet.Keyspace{})
		end, err := writer.Hold(r.ctx, 0, "a")
		r.must(err)
		r.must(set(r.ctx, g, "a", "set"))
		r.finds(g, "a", "set")
		seen := fleet.Ask{ID: "a", Seen: []byte("set")}
		if asked := g.Begin(r.ctx, seen)[0]; asked.Verdict != fleet.Held || asked.Remaining <= 0 || asked.Remaining > 30*time.Second {
			r.Errorf("beside the hold it gets %+v", asked)
		}
		if left := r.rdb.PTTL(r.ctx, keys.OfCache("p").Lease("a")).Val(); left <= 0 || left > 30*time.Second {
			r.Errorf("the key of the hold ends in %v", left)
		}
		r.must(end(r.ctx, true))
		r.publishes(g, "a", "new")
	})
}

// The note of a lift stays for as long as the trip of its hold may take, however short the leases are.
func TestAHoldMayArriveAsLateAsItsTripEnds(t *testing.T) {
	inBubble(t, func(r *rig) {
		space := fleet.Keyspace{Name: "p", RedisTimeout: 250 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
		g := redistest.Must(fleet.New(r.client(), space, fleet.Options{Lease: 100 * time.Millisecond}, fleet.Messages{}))
		defer g.Close()
		arrive, lift := g.DeferHold(r.ctx, "a")
		r.must(lift())
		time.Sleep(1200 * time.Millisecond) // of 250 ms and a second
		r.must(arrive())
		if asked := g.Begin(r.ctx, fleet.Ask{ID: "a"})[0]; asked.Verdict != fleet.Granted {
			r.Errorf("after its lift the hold closes: %+v", asked)
		}
	})
}

// A client of a cluster sends a command once more when its ReadTimeout is over, whatever RedisTimeout is: the
// hold was done and its reply lost, and a quick transaction has ended by then.
//
// Catches a lift that leaves no note because it finds its hold.
func TestAHoldThatIsSentTwiceClosesNothing(t *testing.T) {
	t.Parallel()
	r := onServer(t)
	proxy := redistest.Proxy(t, r.server.Addr())
	slots := []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: proxy.Addr()}}}}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots:    func(context.Context) ([]redis.ClusterSlot, error) { return slots, nil },
		ReadTimeout:     3 * time.Second,
		DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer rdb.Close()
	g := r.with(rdb, fleet.Keyspace{RedisTimeout: 2 * time.Second})
	r.eventually("messages arrive", g.Live)
	end, err := g.Hold(r.ctx, 0, "a")
	r.must(err)
	r.must(end(r.ctx, true))
	r.publishes(g, "a", "old")

	before := r.server.Calls("evalsha")
	proxy.DropReplies(1, "EVALSHA "+fleet.InvalidateScript)
	end, err = g.Hold(r.ctx, 0, "a")
	if !errors.Is(err, fleet.ErrUnavailable) {
		r.Errorf("the hold whose reply is lost: %v", err)
	}
	r.must(end(r.ctx, true))
	r.publishes(g, "a", "new")
	r.eventually("the hold comes once more", func() bool { return r.server.Calls("evalsha") >= before+5 })
	r.finds(g, "a", "new")
	if asked := g.Begin(r.ctx, fleet.Ask{ID: "a", Seen: []byte("new")})[0]; asked.Verdict != fleet.Granted {
		r.Errorf("after its lift the hold closes: %+v", asked)
	}
}

// Redis hangs when a hold is sent. Its caller leaves at the timeout, a quick transaction ends, and the lift
// takes another connection: when Redis is back, the lift may be first. The hold must not close the
// id then. A note says so, and does not stay.
//
// Catches a hold that does not look whether it was lifted, and a note that an invalidation, a lease or its end
// in between takes away.
func TestAHoldThatArrivesAfterItsLiftClosesNothing(t *testing.T) {
	between := map[string]func(r *rig, g *fleet.Group){
		"nothing":       func(*rig, *fleet.Group) {},
		"an invalidate": func(r *rig, g *fleet.Group) { r.must(g.Invalidate(r.ctx, "a")) },
		"a set":         func(r *rig, g *fleet.Group) { r.must(set(r.ctx, g, "a", "set")) },
		"a build":       func(r *rig, g *fleet.Group) { r.publishes(g, "a", "built") },
		"an abort":      func(r *rig, g *fleet.Group) { g.Abort(r.ctx, g.Begin(r.ctx, fleet.Ask{ID: "a"})[0].Lease) },
		"another hold": func(r *rig, g *fleet.Group) {
			end, err := g.Hold(r.ctx, 0, "a")
			r.must(err)
			r.must(end(r.ctx, true))
		},
	}
	everywhere(t, func(r *rig) {
		for name, happens := range between {
			g := r.group(fleet.Keyspace{})
			arrive, lift := g.DeferHold(r.ctx, "a")
			r.must(lift())
			happens(r, g)
			r.must(arrive())
			r.must(g.Invalidate(r.ctx, "a"))
			if asked := g.Begin(r.ctx, fleet.Ask{ID: "a"})[0]; asked.Verdict != fleet.Granted {
				r.Errorf("%s: after its lift the hold closes: %+v", name, asked)
			}
			if left := r.rdb.PTTL(r.ctx, keys.OfCache("p").Lease("a")).Val(); left <= 0 || left > 10*time.Second {
				r.Errorf("%s: the note ends in %v", name, left)
			}
			r.must(g.Invalidate(r.ctx, "a"))
		}
	})
}
