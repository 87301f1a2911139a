package mutexrebuild_test

import (
	"testing"
	"time"

	"github.com/levee-go/levee/mutexrebuild"
)

// held asks for a lease that a writer's hold must refuse, and checks what is shared.
func (r *rig) held(g *group, id, shared string) mutexrebuild.Lease {
	r.Helper()
	grant := g.Begin(r.ctx, mutexrebuild.Ask{ID: id})[0]
	if grant.Verdict != mutexrebuild.Held || string(grant.Value.Data) != shared {
		r.Fatalf("Begin gives %+v, want a hold that shares %q", grant, shared)
	}
	return grant.Lease
}

// shares offers a value and fails the test unless that is shared, or refused, as wanted.
func (r *rig) shares(g *group, right mutexrebuild.Lease, value string, life time.Duration, want bool) {
	r.Helper()
	if got := g.Share(r.ctx, mutexrebuild.Publication{Lease: right, Data: []byte(value), TTL: life})[0]; got != want {
		r.Errorf("Share of %q: %v, want %v", value, got, want)
	}
}

func (r *rig) holds(g *group, id string) (end func()) {
	r.Helper()
	release, err := g.Hold(r.ctx, id)
	r.must(err)
	return func() { r.Helper(); r.must(release(r.ctx)) }
}

// Without the comparison in share.lua, the value of a load that began before another
// write returned would be shared under the hold of a second one, with readers whose Get
// began after that return.
func TestWhatWasLoadedBeforeAnotherWriteReturnedIsNotShared(t *testing.T) {
	for name, happens := range map[string]func(r *rig, g *group){
		"a hold ends":          func(r *rig, g *group) { r.holds(g, "x")() },
		"a hold begins":        func(r *rig, g *group) { r.holds(g, "x") },
		"an invalidation":      func(r *rig, g *group) { r.must(g.Invalidate(r.ctx, "x")) },
		"another shares":       func(r *rig, g *group) { r.shares(g, r.held(g, "x", ""), "newer", time.Millisecond, true) },
		"all of it is evicted": func(r *rig, g *group) { r.must(r.rdb.Del(r.ctx, leaseKey("x")).Err()); r.holds(g, "x") },
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) {
				a, b := r.group(opts{}), r.group(opts{})
				end := r.holds(b, "x")
				right := r.held(a, "x", "")
				happens(r, b)
				time.Sleep(2 * time.Millisecond)
				r.shares(a, right, "old", time.Second, false)
				r.held(b, "x", "")
				end()
			})
		})
	}
}

// Nor what was shared before: it ends in the same step.
func TestWhatIsSharedEndsWithTheNextWrite(t *testing.T) {
	for name, happens := range map[string]func(r *rig, g *group){
		"a hold ends":     func(r *rig, g *group) { r.holds(g, "x")() },
		"an invalidation": func(r *rig, g *group) { r.must(g.Invalidate(r.ctx, "x")) },
		"a Set whose value has ended": func(r *rig, g *group) {
			r.must(set(r.ctx, g, "x", "set"))
			r.must(r.rdb.Del(r.ctx, valueKey("x")).Err())
		},
		"its time": func(r *rig, _ *group) { time.Sleep(1001 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) {
				a, b := r.group(opts{}), r.group(opts{})
				end := r.holds(b, "x")
				r.shares(a, r.held(a, "x", ""), "old", time.Second, true)
				r.held(b, "x", "old")
				happens(r, b)
				r.held(b, "x", "")
				end()
				if left := r.rdb.Exists(r.ctx, leaseKey("x")).Val(); left != 0 {
					r.Error("something is left of the hold")
				}
			})
		})
	}
}

// The hold for the lag of replicas ends by itself. What was read from a replica under it
// must end then too, although a writer holds the key on.
func TestWhatIsSharedEndsWithTheFirstHold(t *testing.T) {
	inBubble(t, func(r *rig) {
		lagging, writer := r.group(opts{ReplicaLag: 300 * time.Millisecond}), r.group(opts{})
		r.must(lagging.Invalidate(r.ctx, "x"))
		defer r.holds(writer, "x")()
		r.shares(lagging, r.held(lagging, "x", ""), "old", time.Second, true)
		time.Sleep(299 * time.Millisecond)
		r.held(writer, "x", "old")
		time.Sleep(2 * time.Millisecond)
		r.held(writer, "x", "")
	})
}

// A Set ends the right in its first step, and the holds keep their end after its second.
func TestASetBesideAWriterEndsWhatIsSharedAndNoHold(t *testing.T) {
	everywhere(t, func(r *rig) {
		a, b := r.group(opts{Hold: time.Minute}), r.group(opts{})
		end := r.holds(a, "x")
		r.shares(b, r.held(b, "x", ""), "9007199254740993", time.Second, true) // a number, as the end of a hold is
		right := r.held(b, "x", "9007199254740993")
		r.must(set(r.ctx, b, "x", "set"))
		r.shares(b, right, "old", time.Second, false)
		if left := r.rdb.PTTL(r.ctx, leaseKey("x")).Val(); left <= 0 || left > time.Minute {
			r.Errorf("the hold ends after %v", left)
		}
		end()
	})
}

// What nobody reads as text comes back as it was.
func TestAnyBytesAreShared(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{})
		defer r.holds(g, "x")()
		value := string([]byte{0, 0xff, '\r', '\n', 0})
		r.shares(g, r.held(g, "x", ""), value, time.Second, true)
		r.held(g, "x", value)
	})
}
