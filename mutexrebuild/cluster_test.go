package mutexrebuild_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

// nasty is what users may have for ids.
var nasty = []string{
	"", "}", "{", "{}", "}{", "a}{b", "{a}", "{{a}}", "{user}:1", "}:lock", "%", "%7B", "%7b", "v1:", "v1:x", ":", "::",
	"\x00", "\r\n", "*1\r\n$4\r\nPING\r\n", "\xff\xfe", "\xc3\x28", "ü", "  ", "$1", "KEYS[1]", "]]", `"`, `\`, "h:", "t", "w",
	strings.Repeat("k", 1024), strings.Repeat("{", 1024), strings.Repeat("\x00", 1024),
}

// A value and its lease have to be in one slot, whatever the id holds. With a hash
// tag of the plain id the scripts fail for the first few of them.
func TestAnyIDWorksOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t)
	r := &rig{T: t, ctx: t.Context()}
	db := newSource()
	g := r.with(c.Client(t), opts{ErrorHold: -1})
	other := r.with(c.Client(t), opts{})
	r.eventually("messages arrive", func() bool { return g.Live() && other.Live() })
	for _, id := range nasty {
		db.write(id, "old")
		r.loads(g, id, "old")
		r.finds(other, id, "old")
		db.write(id, "new")
		r.must(g.Invalidate(r.ctx, id))
		r.want(other, id, "new", db.load(id, 0))
		end, err := g.Hold(r.ctx, id)
		r.must(err)
		r.loads(other, id, "new") // it is held, and so not published
		r.loads(g, id, "new")
		r.must(end(r.ctx))
		if _, err := rebuild(r.ctx, g, id, fails(errSource)); !errors.Is(err, errSource) {
			t.Errorf("%q: %v", id, err)
		}
		err = set(r.ctx, other, id, "set")
		r.must(err)
		r.want(g, id, "set", fails(errSource))
	}
	// All at once, over all slots and in more than one round trip.
	ids := slices.Clone(nasty)
	for i := range 300 {
		ids = append(ids, fmt.Sprint(i))
	}
	for _, id := range ids {
		db.write(id, "last")
		r.must(set(r.ctx, g, id, "old"))
	}
	r.must(other.Invalidate(r.ctx, ids...))
	end, err := g.Hold(r.ctx, ids...)
	r.must(err)
	r.must(end(r.ctx))
	for _, id := range ids {
		r.want(g, id, "last", db.load(id, 0))
	}
	for i, g := range []*group{g, other} {
		if s := g.Stats(); s.Unknown+s.Refused+s.GaveUp > 0 {
			t.Errorf("group %d: %+v", i, s)
		}
	}
	for _, node := range c.Nodes {
		everyKeyEnds(t, node.Client(t))
	}
}

// The same ids on one server, where no slot tells them apart: none may have the
// value or the lease of another.
func TestAnyIDHasAValueOfItsOwn(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{})
		for _, id := range nasty {
			r.want(g, id, "of "+id, gives("of "+id))
		}
		for _, id := range nasty {
			r.finds(g, id, "of "+id)
		}
	})
}

// Waiters on other nodes hear of it: messages go to all nodes of a cluster.
func TestAWaiterIsWokenOverACluster(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t)
	r := &rig{T: t, ctx: t.Context(), server: c.Nodes[0]}
	builder := r.with(c.Client(t), opts{})
	var waiters []*group
	for range 5 {
		waiters = append(waiters, r.with(c.Client(t), opts{}))
	}
	for _, g := range waiters {
		r.eventually("messages arrive", g.Live)
	}
	for i := range 6 {
		id := fmt.Sprint(i)
		db, at := newSource(), newGate()
		db.write(id, "v")
		built := r.do(builder, id, db.gated(id, at), nil)
		<-at.reached
		var answers []answer
		for _, g := range waiters {
			before := g.Stats().Waits
			answers = append(answers, r.do(g, id, fails(errSource), nil))
			r.eventually("it waits", func() bool { return g.Stats().Waits > before })
		}
		close(at.open)
		for _, a := range append(answers, built) {
			a.mustBe(r, nil)
		}
	}
	for _, g := range waiters {
		if s := g.Stats(); s.Wakes == 0 {
			t.Errorf("it was never woken: %+v", s)
		}
	}
}

// While slots move from node to node, go-redis is sent on; nothing of that may
// reach a caller, nor cost a load too many.
func TestSlotsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t)
	r := &rig{T: t, ctx: t.Context()}
	g := r.with(c.Client(t), opts{})
	other := r.with(c.Client(t, func(o *redis.ClusterOptions) { o.ContextTimeoutEnabled = true }), opts{})
	db := newSource()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			for i := range 10 {
				id := fmt.Sprint(i)
				value := fmt.Sprint(n)
				db.write(id, value)
				r.must(g.Invalidate(r.ctx, id))
				r.want(other, id, value, db.load(id, 0))
				r.want(g, id, value, db.load(id, 0))
			}
		}
	}()
	for i := range 5 {
		key := valueKey(fmt.Sprint(i))
		to := c.Nodes[0]
		if c.Owner(key) == to {
			to = c.Nodes[1]
		}
		c.Move(key, to)
		time.Sleep(50 * time.Millisecond)
	}
	close(stop)
	<-stopped
	if s := g.Stats(); s.Unknown+s.GaveUp > 0 {
		t.Errorf("%+v", s)
	}
}
