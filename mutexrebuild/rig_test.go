package mutexrebuild_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/mutexrebuild"
)

type (
	group = mutexrebuild.Group
	stats = mutexrebuild.Stats
)

// opts are the fields of Options and Keyspace that tests set.
type opts struct {
	Lease, LoadTimeout, WaitBudget, ErrorHold, Hold time.Duration
	WaitReplicas                                    int

	Schema, MaxBytes         int
	RedisTimeout, ReplicaLag time.Duration
}

func (o opts) options() mutexrebuild.Options {
	return mutexrebuild.Options{
		Lease: o.Lease, LoadTimeout: o.LoadTimeout, WaitBudget: o.WaitBudget, ErrorHold: o.ErrorHold,
		Hold: o.Hold, WaitReplicas: o.WaitReplicas,
	}
}

func (o opts) keyspace() mutexrebuild.Keyspace {
	return mutexrebuild.Keyspace{
		Name: "p", Schema: o.Schema, MaxBytes: o.MaxBytes, RedisTimeout: o.RedisTimeout, ReplicaLag: o.ReplicaLag,
		Logger: slog.New(slog.DiscardHandler),
	}
}

// newGroup makes a group that the caller has to close.
func newGroup(rdb redis.UniversalClient, o opts) (*group, error) {
	return mutexrebuild.New(rdb, o.keyspace(), o.options())
}

// everywhere runs a test of behaviour on miniredis, in a bubble where waiting
// takes no time, and on a real server.
func everywhere(t *testing.T, behaviour func(r *rig)) {
	t.Run("mini", func(t *testing.T) { inBubble(t, behaviour) })
	t.Run("real", func(t *testing.T) { behaviour(onServer(t)) })
}

func inBubble(t *testing.T, behaviour func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, ctx: t.Context(), mini: redistest.Mini(t)}
		r.begin()
		behaviour(r)
	})
}

func onServer(t *testing.T, args ...string) *rig {
	t.Helper()
	r := &rig{T: t, ctx: t.Context(), server: redistest.Start(t, args...)}
	r.begin()
	return r
}

// A rig is a Redis and what a test needs to work with it. When the test ends,
// every key that is left must have a TTL.
type rig struct {
	*testing.T
	ctx    context.Context
	mini   *redistest.MiniServer // nil on a real server
	server *redistest.Server     // nil in a bubble
	rdb    *redis.Client         // the test's own
}

func (r *rig) begin() {
	r.rdb = r.client()
	r.Cleanup(func() { everyKeyEnds(r.T, r.rdb) })
}

// client makes the client of another process, as it were.
func (r *rig) client(changes ...func(*redis.Options)) *redis.Client {
	if r.server != nil {
		return r.server.Client(r, changes...)
	}
	return r.mini.Client(r, changes...)
}

// group makes a group with a client of its own, whose messages arrive.
func (r *rig) group(o opts) *group {
	r.Helper()
	g := r.with(r.client(), o)
	r.eventually("messages arrive", g.Live)
	return g
}

// with makes a group that is closed with the test. Where a test does not say
// otherwise, a loaded machine must not be taken for a Redis that does not answer.
func (r *rig) with(rdb redis.UniversalClient, o opts) *group {
	r.Helper()
	if o.RedisTimeout == 0 {
		o.RedisTimeout = 5 * time.Second
	}
	g, err := newGroup(rdb, o)
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

// A load reads a value from the source.
type load func(context.Context) (string, error)

// forAMinute makes l the load of a value that Redis keeps for a minute.
func (l load) forAMinute(ctx context.Context) ([]byte, time.Duration, error) {
	value, err := l(ctx)
	return []byte(value), time.Minute, err
}

func rebuild(ctx context.Context, g *group, id string, l load) (string, error) {
	data, err := g.Rebuild(ctx, id, l.forAMinute)
	return string(data), err
}

func set(ctx context.Context, g *group, id, value string) error {
	return g.Set(ctx, id, []byte(value), time.Minute)
}

// want does a Rebuild that must give value.
func (r *rig) want(g *group, id, value string, l load) {
	r.Helper()
	got, err := rebuild(r.ctx, g, id, l)
	if err != nil || got != value {
		r.Errorf("Rebuild(%q) gives %.60q, %v, want %.60q", id, got, err, value)
	}
}

// loads does a Rebuild that must load value.
func (r *rig) loads(g *group, id, value string) {
	r.Helper()
	loaded := false
	r.want(g, id, value, func(context.Context) (string, error) { loaded = true; return value, nil })
	if !loaded {
		r.Errorf("Rebuild(%q) did not load", id)
	}
}

// finds does a Rebuild that must find value in Redis.
func (r *rig) finds(g *group, id, value string) {
	r.Helper()
	r.want(g, id, value, fails(errors.New("it loads")))
}

// uses reports whether a Rebuild finds its value in Redis. If not, it loads one.
func (r *rig) uses(g *group, id string) bool {
	r.Helper()
	loaded := false
	r.want(g, id, "v", func(context.Context) (string, error) { loaded = true; return "v", nil })
	return !loaded
}

// keeps loads a value of id, if there is none, and reports whether Redis has one then.
func (r *rig) keeps(g *group, id string) bool {
	r.Helper()
	r.want(g, id, "v", gives("v"))
	return r.stored(id) != ""
}

// stored returns the value that stands in Redis, "" if there is none.
func (r *rig) stored(id string) string {
	r.Helper()
	value, err := r.rdb.Get(r.ctx, valueKey(id)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		r.Error(err)
	}
	return value
}

// lay puts a value under a key as another process might.
func (r *rig) lay(id, value string) {
	r.Helper()
	r.must(r.rdb.Set(r.ctx, valueKey(id), value, time.Minute).Err())
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Error(err)
	}
}

func valueKey(id string) string { return keys.OfCache("p").Value(0, id) }
func leaseKey(id string) string { return keys.OfCache("p").Lease(id) }

// everyKeyEnds fails the test for a key without a TTL.
func everyKeyEnds(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	ctx := context.Background()
	for scan := rdb.Scan(ctx, 0, "*", 1000).Iterator(); scan.Next(ctx); {
		if ttl := rdb.PTTL(ctx, scan.Val()).Val(); ttl == -1 { // go-redis passes the server's -1 on
			t.Errorf("%q has no TTL", scan.Val())
		}
	}
}

// gives is a load that brings a value at once.
func gives(value string) load {
	return func(context.Context) (string, error) { return value, nil }
}

// A source is a database of one row per id, which counts what it is asked.
type source struct {
	mu    sync.Mutex
	rows  map[string]string // guarded by mu
	loads map[string]int    // guarded by mu
}

func newSource() *source { return &source{rows: map[string]string{}, loads: map[string]int{}} }

func (s *source) write(id, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[id] = value
}

func (s *source) read(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads[id]++
	return s.rows[id]
}

func (s *source) loaded(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads[id]
}

// load reads a row and then takes its time to come back with it.
func (s *source) load(id string, takes time.Duration) load {
	return func(context.Context) (string, error) {
		value := s.read(id)
		time.Sleep(takes)
		return value, nil
	}
}

// A gate makes a load stop after it has read its row, until the test lets it go.
type gate struct {
	reached chan struct{} // one for each load that has read
	open    chan struct{} // lets one go; closed, all
}

func newGate() *gate { return &gate{make(chan struct{}, 100), make(chan struct{})} }

func (s *source) gated(id string, at *gate) load {
	return func(ctx context.Context) (string, error) {
		value := s.read(id)
		at.reached <- struct{}{}
		<-at.open
		return value, nil
	}
}

// An answer is what a Rebuild on another goroutine will give.
type answer chan error

func (r *rig) do(g *group, id string, l load, got *string) answer {
	return r.doWith(r.ctx, g, id, l, got)
}

func (r *rig) doWith(ctx context.Context, g *group, id string, l load, got *string) answer {
	a := make(answer, 1)
	go func() {
		value, err := rebuild(ctx, g, id, l)
		if got != nil {
			*got = value
		}
		a <- err
	}()
	return a
}

func (a answer) mustBe(r *rig, want error) {
	r.Helper()
	if err := <-a; !errors.Is(err, want) {
		r.Errorf("Rebuild gives the error %v, want %v", err, want)
	}
}

// waits waits until a group's flight waits for the lease of another.
func (r *rig) waits(g *group) {
	r.Helper()
	r.eventually("it waits for the lease", func() bool { return g.Stats().Waits > 0 })
}

// joined waits until so many callers are on the flight of id.
func (r *rig) joined(g *group, id string, n int) {
	r.Helper()
	r.eventually("they have joined", func() bool { return mutexrebuild.Joined(g, id) == n })
}

func (r *rig) checkStats(g *group, what string, ok func(s stats) bool) {
	r.Helper()
	if s := g.Stats(); !ok(s) {
		r.Errorf("%s: %+v", what, s)
	}
}

// took checks how long something took: exactly within limit in a bubble, with
// room for a loaded machine outside.
func (r *rig) took(since time.Time, limit time.Duration, what string) {
	r.Helper()
	if r.server != nil {
		limit += 2 * time.Second // a lease that was left behind takes three
	}
	if took := time.Since(since); took > limit {
		r.Errorf("%s took %v, want at most %v", what, took, limit)
	}
}

var errSource = errors.New("the source is unwell")

func fails(err error) load {
	return func(context.Context) (string, error) { return "", fmt.Errorf("load: %w", err) }
}
