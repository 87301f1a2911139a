package fleet_test

import (
	"testing"
	"time"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/keys"
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
		end, err := g.Hold(r.ctx, "a")
		r.must(err)
		if asked := r.group(fleet.Keyspace{}).Begin(r.ctx, fleet.Ask{ID: "a"})[0]; asked.Verdict != fleet.Held || asked.Remaining <= 0 {
			r.Errorf("under a hold it gets %+v", asked)
		}
		r.must(end(r.ctx))
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
		end, err := writer.Hold(r.ctx, "a")
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
		r.must(end(r.ctx))
		r.publishes(g, "a", "new")
	})
}
