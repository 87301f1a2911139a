package fleet_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m, nil) }

// everywhere runs a test of behaviour on miniredis, in a bubble where waiting takes no time,
// and on a real server.
func everywhere(t *testing.T, behaviour func(r *rig)) {
	t.Run("mini", func(t *testing.T) { inBubble(t, behaviour) })
	t.Run("real", func(t *testing.T) { behaviour(onServer(t)) })
}

func inBubble(t *testing.T, behaviour func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		mini := redistest.Mini(t)
		behaviour(newRig(t, func() *redis.Client { return mini.Client(t) }))
	})
}

func onServer(t *testing.T) *rig {
	t.Helper()
	server := redistest.Start(t)
	r := newRig(t, func() *redis.Client { return server.Client(t) })
	r.server = server
	return r
}

// A rig is a Redis and what a test needs to work with it.
type rig struct {
	*testing.T
	ctx    context.Context
	client func() *redis.Client // of another process, as it were
	server *redistest.Server    // nil in a bubble
	rdb    *redis.Client        // the test's own
}

func newRig(t *testing.T, client func() *redis.Client) *rig {
	return &rig{T: t, ctx: t.Context(), client: client, rdb: client()}
}

// group makes a group with a client of its own, whose messages arrive.
func (r *rig) group(space fleet.Keyspace) *fleet.Group {
	r.Helper()
	g := r.with(r.client(), space)
	r.eventually("messages arrive", g.Live)
	return g
}

// with makes a group that is closed with the test. Where a test does not say otherwise, a
// loaded machine must not be taken for a Redis that does not answer.
func (r *rig) with(rdb redis.UniversalClient, space fleet.Keyspace) *fleet.Group {
	r.Helper()
	return r.open(rdb, space, fleet.Messages{})
}

// listening makes a group that hears the messages of other processes.
func (r *rig) listening(rdb redis.UniversalClient, m fleet.Messages) *fleet.Group {
	r.Helper()
	return r.open(rdb, fleet.Keyspace{}, m)
}

func (r *rig) open(rdb redis.UniversalClient, space fleet.Keyspace, m fleet.Messages) *fleet.Group {
	r.Helper()
	space.Name, space.Logger = "p", slog.New(slog.DiscardHandler)
	if space.RedisTimeout == 0 {
		space.RedisTimeout = 5 * time.Second
	}
	g, err := fleet.New(rdb, space, fleet.Options{}, m)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(g.Close)
	return g
}

func (r *rig) eventually(what string, cond func() bool) {
	r.Helper()
	redistest.Eventually(r, 20*time.Second, what, cond)
}

// publishes takes the lease of an id and publishes a value under it.
func (r *rig) publishes(g *fleet.Group, id, value string) {
	r.Helper()
	grant := g.Begin(r.ctx, fleet.Ask{ID: id})[0]
	if grant.Verdict != fleet.Granted {
		r.Fatalf("it asks for the lease of %q and gets %+v", id, grant)
	}
	if out := g.Commit(r.ctx, publication(grant.Lease, value))[0]; !out.Published || out.Err != nil {
		r.Errorf("%q is not published: %+v", id, out)
	}
}

func publication(lease fleet.Lease, value string) fleet.Publication {
	return fleet.Publication{Lease: lease, Data: []byte(value), TTL: time.Minute}
}

// finds reads a value that must be there.
func (r *rig) finds(g *fleet.Group, id, value string) {
	r.Helper()
	if found := g.Get(r.ctx, id)[0]; string(found.Data) != value || found.Err != nil {
		r.Errorf("of %q there is %q, %v, want %q", id, found.Data, found.Err, value)
	}
}

// lay puts a value under a key as another process might.
func (r *rig) lay(id, value string) {
	r.Helper()
	r.must(r.rdb.Set(r.ctx, valueKey(id), value, time.Minute).Err())
}

func set(ctx context.Context, g *fleet.Group, id, value string) error {
	return g.Set(ctx, publication(fleet.Lease{ID: id}, value))
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Error(err)
	}
}

func valueKey(id string) string { return keys.OfCache("p").Value(0, id) }

func (r *rig) checkStats(g *fleet.Group, what string, ok func(s fleet.Stats) bool) {
	r.Helper()
	if s := g.Stats(); !ok(s) {
		r.Errorf("%s: %+v", what, s)
	}
}
