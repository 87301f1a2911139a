package fleet_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/redistest"
)

// In a cluster an outage goes for each node by itself, also for its writers.
//
// Catches an invalidation that makes every id of a call pending when one of its nodes
// does not answer: this process then took what is healthy for what it must not read.
func TestADeadNodeLeavesTheConfirmedInvalidationsOfOthersAlone(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t)
	r := &rig{T: t, ctx: t.Context()}
	for _, node := range c.Nodes { // else they stop answering with the first that is dead
		r.must(node.Client(t).ConfigSet(r.ctx, "cluster-require-full-coverage", "no").Err())
	}
	g := r.with(c.Client(t), fleet.Keyspace{RedisTimeout: 500 * time.Millisecond})
	r.eventually("messages arrive", g.Live)
	dead := c.Nodes[2]
	var ids, healthy []string
	for i := range 300 { // in more than one round trip
		id := fmt.Sprint(i)
		r.must(set(r.ctx, g, id, "old"))
		ids = append(ids, id)
		if c.Owner(valueKey(id)) != dead {
			healthy = append(healthy, id)
		}
	}
	for name, write := range map[string]func() error{
		"Invalidate": func() error { return g.Invalidate(r.ctx, ids...) },
		"Set": func() error {
			var values []fleet.Publication
			for _, id := range ids {
				values = append(values, fleet.Publication{Lease: fleet.Lease{ID: id}, Data: []byte("new"), TTL: time.Minute})
			}
			return g.Set(r.ctx, values...)
		},
	} {
		dead.Stop()
		if err := write(); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if n, want := g.Stats().Unconfirmed, len(ids)-len(healthy); n != want {
			t.Errorf("%s: %d of %d ids are pending, and the dead node has %d", name, n, len(ids), want)
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
