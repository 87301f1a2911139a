package cache_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A cell is one combination of the tiers that a cache may stand on.
type cell struct {
	redis                  string // "mini": in a bubble; "real": a redis-server; "none"
	local, filter, breaker bool
}

func (c cell) String() string {
	name := c.redis
	for _, tier := range []struct {
		name string
		on   bool
	}{{"local", c.local}, {"filter", c.filter}, {"breaker", c.breaker}} {
		if tier.on {
			name += "+" + tier.name
		}
	}
	return name
}

// everyCell is a choice of combinations that has each two tiers both ways, and with each kind of
// Redis; the long run has all 24.
func everyCell() (all []cell) {
	if !redistest.Pick(false, true) {
		return []cell{
			{redis: "mini"}, {redis: "mini", local: true, filter: true, breaker: true},
			{redis: "real", local: true}, {redis: "real", filter: true, breaker: true},
			{redis: "none", filter: true}, {redis: "none", local: true, breaker: true},
		}
	}
	for _, kind := range []string{"mini", "real", "none"} {
		for bits := range 8 {
			all = append(all, cell{kind, bits&1 != 0, bits&2 != 0, bits&4 != 0})
		}
	}
	return all
}

// fewCells are for behaviour on which filter and breaker have no influence.
var fewCells = []cell{
	{redis: "mini"}, {redis: "mini", local: true}, {redis: "real", local: true}, {redis: "none"}, {redis: "none", local: true},
}

// inCells runs a test of behaviour in each of the cells. Those with a real server
// share one. The others run in a bubble, where waiting takes no time, and a sleep of
// the test ends only when everybody else waits.
func inCells(t *testing.T, cells []cell, behaviour func(r *rig)) {
	var server *redistest.Server
	outer := t
	for _, c := range cells {
		t.Run(c.String(), func(t *testing.T) {
			switch c.redis {
			case "mini":
				inBubble(t, c, func(r *rig, _ *redistest.MiniServer) { behaviour(r) })
			case "real":
				redistest.Need(t)
				if server == nil {
					server = redistest.Start(outer)
				}
				r := onServer(t, server, c)
				behaviour(r)
			case "none":
				synctest.Test(t, func(t *testing.T) { behaviour(newRig(t, c, nil)) })
			}
		})
	}
}

// inBubble runs test in a bubble of its own. The bubble fails the test if a
// goroutine is left.
func inBubble(t *testing.T, c cell, test func(r *rig, m *redistest.MiniServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := redistest.Mini(t)
		t.Cleanup(synctest.Wait) // for what go-redis still dials behind its callers' backs
		test(newRig(t, c, func() redis.UniversalClient { return m.Client(t) }), m)
	})
}

// onServer is for a test that keeps no reply of its Redis back: a busy machine must not be taken for an
// outage. A Redis that restarts or refuses says so at once.
func onServer(t *testing.T, s *redistest.Server, c cell) *rig {
	t.Helper()
	r := onFailing(t, s, c)
	r.patient = true
	return r
}

// onFailing is for a test whose Redis hangs, or which is about how an outage is noticed: its caches wait for it as long as users' do.
func onFailing(t *testing.T, s *redistest.Server, c cell) *rig {
	t.Helper()
	return newRig(t, c, func() redis.UniversalClient { return s.Client(t) })
}

// A rig is a cell with its tiers made, in which caches can be opened. At the end
// of the test it closes them and checks what holds for every test: the outcomes
// of all Gets add up, and everything in Redis has a TTL.
type rig struct {
	*testing.T
	cell
	ctx     context.Context
	client  func() redis.UniversalClient // makes the client of another "process"; nil: no Redis
	rdb     redis.UniversalClient        // the test's own client; nil: no Redis
	exists  *bloom.Filter                // nil: no filter
	patient bool                         // caches wait five seconds for Redis
	deaf    bool                         // caches do not hear their heartbeats, so do not wait for them
}

func newRig(t *testing.T, c cell, client func() redis.UniversalClient) *rig {
	t.Helper()
	r := &rig{T: t, cell: c, ctx: t.Context(), client: client}
	if client != nil {
		r.rdb = client()
		if err := r.rdb.FlushAll(r.ctx).Err(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { everyKeyEnds(t, r.rdb) })
	}
	if c.filter {
		r.exists = redistest.Must(bloom.New(bloom.Options{Capacity: 10_000, FalsePositiveRate: 1e-6, Complete: true}))
		t.Cleanup(func() { _ = r.exists.Close() })
	}
	return r
}

// options are those of the cell.
func (r *rig) options(changes []func(*cache.Options)) cache.Options {
	o := cache.Options{Name: "test", Logger: slog.New(slog.DiscardHandler)}
	if r.patient {
		o.RedisTimeout = 5 * time.Second
	}
	// To make and close a local tier of the default size takes 50 ms with the race detector.
	if o.Local.MaxBytes, o.Local.MaxNullBytes = 1<<20, 1<<20; !r.local {
		o.Local.MaxBytes = -1
	}
	if r.filter {
		o.Filter = r.exists
	}
	if !r.breaker {
		within(-1)(&o)
	}
	for _, change := range changes {
		change(&o)
	}
	return o
}

// within gives a load so much time, of a breaker that does nothing else. -1: all the time it takes.
func within(limit time.Duration) func(*cache.Options) {
	return func(o *cache.Options) {
		o.Breaker = redistest.Must(breaker.New(breaker.Options{FailureRatio: -1, MaxConcurrent: -1, MaxDegraded: -1, Timeout: limit}))
	}
}

// known puts keys into the filter, if there is one.
func (r *rig) known(keys ...int64) {
	if r.exists == nil {
		return
	}
	for _, key := range keys {
		_ = r.exists.Add(r.ctx, strconv.FormatInt(key, 10)) // fails only when closed
	}
}

func (r *rig) eventually(what string, cond func() bool) {
	r.Helper()
	redistest.Eventually(r, 20*time.Second, what, cond)
}

// everyKeyEnds fails the test if a key in Redis has no TTL.
func everyKeyEnds(t *testing.T, rdb redis.UniversalClient) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own has ended
	defer cancel()
	scan := rdb.Scan(ctx, 0, "*", 1000).Iterator()
	for scan.Next(ctx) {
		if strings.HasPrefix(scan.Val(), "foreign") {
			continue // the test's own
		}
		left, err := rdb.PTTL(ctx, scan.Val()).Result()
		if err != nil || left == -1 {
			t.Errorf("the key %q has no TTL (%v, %v)", scan.Val(), left, err)
		}
	}
	if err := scan.Err(); err != nil {
		t.Errorf("the keys in Redis could not be looked at: %v", err)
	}
}

// A probe is a cache that counts the Gets it was asked for, to compare them with
// what the cache says.
type probe[K comparable, V any] struct {
	*cache.Cache[K, V]
	asked atomic.Uint64
}

// open makes a cache on the rig's tiers, with a client of its own, as another
// process has it.
func open[K comparable, V any](r *rig, src cache.Source[K, V], changes ...func(*cache.Options)) *probe[K, V] {
	r.Helper()
	var rdb redis.UniversalClient
	if r.client != nil {
		rdb = r.client()
	}
	return openOn(r, rdb, src, changes...)
}

// openOn is open with a client that the test has made.
func openOn[K comparable, V any](r *rig, rdb redis.UniversalClient, src cache.Source[K, V], changes ...func(*cache.Options)) *probe[K, V] {
	r.Helper()
	c, err := cache.NewFrom(rdb, src, r.options(changes))
	if err != nil {
		r.Fatal(err)
	}
	p := &probe[K, V]{Cache: c}
	r.Cleanup(func() {
		if err := c.Close(); err != nil {
			r.Error(err)
		}
		p.conserved(r)
	})
	if r.local && rdb != nil && !r.deaf {
		r.eventually("the cache hears its heartbeat", func() bool { return c.Stats().Live })
	}
	return p
}

// conserved checks that every Get of the test ended as exactly one outcome.
func (p *probe[K, V]) conserved(t testing.TB) {
	t.Helper()
	s := p.Stats()
	sum := s.Local + s.Redis + s.Null + s.Filter + s.Loaded + s.Joined + s.Stale + s.NotCached + s.Errors
	if asked := p.asked.Load(); s.Gets != asked || sum != asked {
		t.Errorf("%d Gets, of which the cache counted %d and accounts for %d: %+v", asked, s.Gets, sum, s)
	}
	if s.StaleAge.Count() != s.Stale || s.LoadTime.Count() > s.Loads {
		t.Errorf("%d stale answers have %v ages, %d loads %v times", s.Stale, s.StaleAge, s.Loads, s.LoadTime)
	}
}

func (p *probe[K, V]) Get(ctx context.Context, key K) (V, error) {
	p.asked.Add(1)
	return p.Cache.Get(ctx, key)
}

func (p *probe[K, V]) Fetch(ctx context.Context, key K) (cache.Result[V], error) {
	p.asked.Add(1)
	return p.Cache.Fetch(ctx, key)
}

func (p *probe[K, V]) GetMany(ctx context.Context, keys []K) (map[K]V, error) {
	p.asked.Add(different(keys))
	return p.Cache.GetMany(ctx, keys)
}

func (p *probe[K, V]) FetchMany(ctx context.Context, keys []K) (map[K]cache.Result[V], error) {
	p.asked.Add(different(keys))
	return p.Cache.FetchMany(ctx, keys)
}

func (p *probe[K, V]) With(rules cache.Reads) *probeReader[K, V] {
	return &probeReader[K, V]{p.Cache.With(rules), p}
}

// A probeReader is a Reader whose reads its probe counts.
type probeReader[K comparable, V any] struct {
	*cache.Reader[K, V]
	p *probe[K, V]
}

func (r *probeReader[K, V]) Get(ctx context.Context, key K) (V, error) {
	r.p.asked.Add(1)
	return r.Reader.Get(ctx, key)
}

func (r *probeReader[K, V]) Fetch(ctx context.Context, key K) (cache.Result[V], error) {
	r.p.asked.Add(1)
	return r.Reader.Fetch(ctx, key)
}

func (r *probeReader[K, V]) GetMany(ctx context.Context, keys []K) (map[K]V, error) {
	r.p.asked.Add(different(keys))
	return r.Reader.GetMany(ctx, keys)
}

func (r *probeReader[K, V]) FetchMany(ctx context.Context, keys []K) (map[K]cache.Result[V], error) {
	r.p.asked.Add(different(keys))
	return r.Reader.FetchMany(ctx, keys)
}

func different[K comparable](keys []K) uint64 {
	set := map[K]bool{}
	for _, key := range keys {
		set[key] = true
	}
	return uint64(len(set))
}

// gives fails the test unless key has this value.
func (p *probe[K, V]) gives(r *rig, key K, want any) {
	r.Helper()
	got, err := p.Get(r.ctx, key)
	if err != nil || any(got) != want {
		r.Errorf("Get(%v) is %v, %v; want %v", key, got, err, want)
	}
}

// gives404 fails the test unless key does not exist.
func (p *probe[K, V]) gives404(r *rig, key K) {
	r.Helper()
	if got, err := p.Get(r.ctx, key); !errors.Is(err, cache.ErrNotFound) {
		r.Errorf("Get(%v) is %v, %v; want ErrNotFound", key, got, err)
	}
}

// comesFrom waits until the value of key comes from a tier: the local one shows a
// fill only some moments after it.
func (p *probe[K, V]) comesFrom(r *rig, key K, want cache.Tier) (got cache.Result[V]) {
	r.Helper()
	r.eventually("the answer comes from "+want.String(), func() bool {
		var err error
		got, err = p.Fetch(r.ctx, key)
		if err != nil && !errors.Is(err, cache.ErrNotFound) {
			r.Errorf("Fetch(%v): %v", key, err)
		}
		return got.Tier == want
	})
	return got
}

// near is the tier in which the rig's caches keep what they have read, TierSource
// if there is none.
func (r *rig) near() cache.Tier {
	switch {
	case r.local:
		return cache.TierLocal
	case r.rdb != nil:
		return cache.TierRedis
	}
	return cache.TierSource
}

// withoutRedis is where the i-th answer comes from if Redis cannot hold the value.
func (r *rig) withoutRedis(i int) cache.Tier {
	if r.local && i > 0 {
		return cache.TierLocal
	}
	return cache.TierSource
}

// kept reports whether the rig's caches keep anything.
func (r *rig) kept() bool { return r.near() != cache.TierSource }

func (r *rig) do(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// hard ends values with their TTL.
func hard(o *cache.Options) { o.StaleWhileRevalidate, o.StaleIfError, o.EarlyRefresh = -1, -1, -1 }

func ttl(d time.Duration) func(*cache.Options) { return func(o *cache.Options) { o.TTL = d } }
