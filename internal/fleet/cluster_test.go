package fleet_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// In a cluster an outage goes for each node by itself, also for its writers.
//
// Catches an invalidation that makes every id of a call pending when one of its nodes
// does not answer: this process then took what is healthy for what it must not read. And
// one that gives up what is left when all ids of a round trip were on that node.
func TestADeadNodeLeavesTheConfirmedInvalidationsOfOthersAlone(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t)
	r := &rig{T: t, ctx: t.Context()}
	for _, node := range c.Nodes { // else they stop answering with the first that is dead
		r.must(node.Client(t).ConfigSet(r.ctx, "cluster-require-full-coverage", "no").Err())
	}
	g := r.with(c.Client(t), fleet.Keyspace{RedisTimeout: 500 * time.Millisecond})
	r.eventually("messages arrive", g.Live)
	// Whoever misses messages, as on a busy machine, has to read the clears: their node stays up.
	names := keys.OfCache("p")
	dead := c.Nodes[slices.IndexFunc(c.Nodes, func(node *redistest.Server) bool {
		return node != c.Owner(names.Clears()) && node != c.Owner(names.Messages())
	})]
	var mixed, unwell, healthy []string
	var old []fleet.Publication
	for i := range 200 { // in more than one round trip
		id := fmt.Sprint(i)
		old = append(old, publication(fleet.Lease{ID: id}, "old"))
		mixed = append(mixed, id)
		if c.Owner(valueKey(id)) == dead {
			unwell = append(unwell, id)
		} else {
			healthy = append(healthy, id)
		}
	}
	r.must(g.Set(r.ctx, old...))
	for name, write := range map[string]func() error{
		"Invalidate": func() error { return g.Invalidate(r.ctx, mixed...) },
		"Invalidate, those of the dead node first": func() error {
			return g.Invalidate(r.ctx, slices.Concat(unwell, healthy)...)
		},
		"Set": func() error {
			var values []fleet.Publication
			for _, id := range mixed {
				values = append(values, publication(fleet.Lease{ID: id}, "new"))
			}
			return g.Set(r.ctx, values...)
		},
	} {
		dead.Stop()
		if err := write(); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if n, want := g.Stats().Unconfirmed, len(unwell); n != want {
			t.Errorf("%s: %d of %d ids are pending, and the dead node has %d", name, n, len(mixed), want)
		}
		for _, id := range healthy[:20] {
			if len(g.Get(r.ctx, id)[0].Data) == 0 {
				r.publishes(g, id, "new")
			}
			r.finds(g, id, "new")
		}
		dead.Cont()
		r.eventually("what the node had is confirmed", func() bool { return g.Stats().Unconfirmed == 0 })
	}
}
