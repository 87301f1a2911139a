package mutexrebuild_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/mutexrebuild"
)

type (
	group  = mutexrebuild.Group[string]
	load   = mutexrebuild.Load[string]
	result = mutexrebuild.Result[string]
	stats  = mutexrebuild.Stats
	opts   = mutexrebuild.Options
	events = mutexrebuild.Events
	format = mutexrebuild.Format[string]
)

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
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	r := &rig{T: t, ctx: t.Context(), server: redistest.Start(t, args...)}
	r.begin()
	return r
}

// A rig is a Redis and what a test needs to work with it. When the test ends,
// every key that is left must have a TTL, and no goroutine may be.
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
	// A client in a bubble that waits for a connection takes a timer from a pool of
	// go-redis' own, where it may meet one of another bubble.
	return r.mini.Client(r, append(changes, func(o *redis.Options) { o.PoolSize = 10_000 })...)
}

// group makes a group with a client of its own, whose messages arrive.
func (r *rig) group(o opts) *group {
	r.Helper()
	g := r.with(r.client(), events{}, o)
	r.eventually("messages arrive", g.Live)
	return g
}

// with makes a group that is closed with the test. Where a test does not say
// otherwise, a loaded machine must not be taken for a Redis that does not answer.
func (r *rig) with(rdb redis.UniversalClient, e events, o opts) *group {
	r.Helper()
	if o.RedisTimeout == 0 {
		o.RedisTimeout = 5 * time.Second
	}
	g, err := mutexrebuild.New(rdb, "p", framed, e, o)
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

// want does a Do that must give value.
func (r *rig) want(g *group, id, value string, l load) result {
	r.Helper()
	got, err := g.Do(r.ctx, id, l)
	if err != nil || got.Value != value {
		r.Errorf("Do(%q) gives %q, %v, want %q", id, got.Value, err, value)
	}
	return got
}

// stored returns the value that stands in Redis, "" if there is none.
func (r *rig) stored(id string) string {
	r.Helper()
	data, err := r.rdb.Get(r.ctx, valueKey(id)).Bytes()
	if errors.Is(err, redis.Nil) {
		return ""
	}
	value, condition := framed.Decode(id, data)
	if err != nil || condition == mutexrebuild.Unfit {
		r.Errorf("at %q stands %q, %v", valueKey(id), data, err)
	}
	return value
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Error(err)
	}
}

func valueKey(id string) string { return keys.Value("p", 0, id) }
func leaseKey(id string) string { return keys.Lease(valueKey(id)) }

// everyKeyEnds fails the test for a key that would stay for ever.
func everyKeyEnds(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	ctx := context.Background()
	for scan := rdb.Scan(ctx, 0, "*", 1000).Iterator(); scan.Next(ctx); {
		if ttl := rdb.PTTL(ctx, scan.Val()).Val(); ttl == -1 { // go-redis passes the server's -1 on
			t.Errorf("%q has no TTL", scan.Val())
		}
	}
}

// framed stores a value between its id and an end, so that what belongs to another
// key or lacks a part is told from a value. A value says itself if it is old.
var framed = format{
	Encode: func(id, value string) ([]byte, time.Duration, error) {
		return []byte(frame(id, value)), time.Minute, nil
	},
	Decode: func(id string, data []byte) (string, mutexrebuild.Condition) {
		value, ok := strings.CutPrefix(string(data), id+"=")
		if !ok {
			return "", mutexrebuild.Unfit
		}
		value, ok = strings.CutSuffix(value, ";")
		switch {
		case !ok:
			return "", mutexrebuild.Unfit
		case strings.HasPrefix(value, "aging"):
			return value, mutexrebuild.Aging
		case strings.HasPrefix(value, "spare"):
			return value, mutexrebuild.Spare
		}
		return value, mutexrebuild.Fresh
	},
}

func frame(id, value string) string { return id + "=" + value + ";" }

// gives is a load that brings a value at once.
func gives(value string) load {
	return func(context.Context, bool) (string, error) { return value, nil }
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
	return func(context.Context, bool) (string, error) {
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
	return func(ctx context.Context, _ bool) (string, error) {
		value := s.read(id)
		at.reached <- struct{}{}
		<-at.open
		return value, nil
	}
}

// An answer is what a Do in another goroutine will give.
type answer chan error

func (r *rig) do(g *group, id string, l load, got *result) answer {
	return r.doWith(r.ctx, g, id, l, got)
}

func (r *rig) doWith(ctx context.Context, g *group, id string, l load, got *result) answer {
	a := make(answer, 1)
	go func() {
		if got == nil {
			got = new(result)
		}
		var err error
		*got, err = g.Do(ctx, id, l)
		a <- err
	}()
	return a
}

func (a answer) mustBe(r *rig, want error) {
	r.Helper()
	if err := <-a; !errors.Is(err, want) {
		r.Errorf("Do gives the error %v, want %v", err, want)
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
	r.eventually("they have joined", func() bool { return g.Joined(id) == n })
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
	return func(context.Context, bool) (string, error) { return "", fmt.Errorf("load: %w", err) }
}
