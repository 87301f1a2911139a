package mutexrebuild_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/mutexrebuild"
)

// clients have options that would hold a caller for seconds, or without limit.
var clients = map[string]func(*redis.Options){
	"defaults":         func(*redis.Options) {},
	"no timeouts":      func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 },
	"obeys contexts":   func(o *redis.Options) { o.ContextTimeoutEnabled = true },
	"two connections":  func(o *redis.Options) { o.PoolSize = 2 },
	"protocol 2":       func(o *redis.Options) { o.Protocol = 2 },
	"patient to dial":  func(o *redis.Options) { o.DialTimeout, o.DialerRetries = 10*time.Second, 20 },
	"tries many times": func(o *redis.Options) { o.MaxRetries, o.MaxRetryBackoff = 20, 5*time.Second },
}

// While the source answers, an outage of Redis costs a caller one RedisTimeout and no
// error. A call of go-redis itself takes five seconds here.
func TestAnOutageOfRedisCostsACallerOneTimeoutAndNoError(t *testing.T) {
	const timeout = 100 * time.Millisecond
	for outage, strike := range map[string]struct {
		begin, end func(s *redistest.Server, p *redistest.FaultProxy)
	}{
		"frozen":     {func(s *redistest.Server, _ *redistest.FaultProxy) { s.Stop() }, func(s *redistest.Server, _ *redistest.FaultProxy) { s.Cont() }},
		"gone":       {func(s *redistest.Server, _ *redistest.FaultProxy) { s.Kill() }, func(s *redistest.Server, _ *redistest.FaultProxy) { s.Restart() }},
		"black hole": {func(_ *redistest.Server, p *redistest.FaultProxy) { p.Blackhole(true) }, func(_ *redistest.Server, p *redistest.FaultProxy) { p.Blackhole(false) }},
		"slow":       {func(_ *redistest.Server, p *redistest.FaultProxy) { p.Delay(500 * time.Millisecond) }, func(_ *redistest.Server, p *redistest.FaultProxy) { p.Delay(0) }},
	} {
		for name, change := range clients {
			t.Run(outage+", "+name, func(t *testing.T) {
				t.Parallel()
				r := &rig{T: t, ctx: t.Context(), server: redistest.Start(t)}
				p := redistest.Proxy(t, r.server.Addr())
				warm := r.with(p.Client(t, change), opts{RedisTimeout: timeout, ErrorHold: -1})
				cold := r.with(p.Client(t, change), opts{RedisTimeout: timeout, ErrorHold: -1})
				r.eventually("messages arrive", func() bool { return warm.Live() && cold.Live() })
				r.eventually("a hit", func() bool { return r.uses(warm, "x") })
				strike.begin(r.server, p)
				fresh := r.with(p.Client(t, change), opts{RedisTimeout: timeout, ErrorHold: -1})
				groups := []*group{warm, cold, fresh}
				var all sync.WaitGroup
				var mu sync.Mutex
				var worst time.Duration
				for i := range 32 {
					g := groups[i%len(groups)]
					all.Go(func() {
						for range 3 {
							began := time.Now()
							r.loads(g, fmt.Sprint(i), "v")
							mu.Lock()
							worst = max(worst, time.Since(began))
							mu.Unlock()
						}
					})
				}
				all.Wait()
				t.Logf("a Do took at most %v", worst)
				if worst > timeout+3*time.Second { // a loaded machine is slow
					t.Errorf("a Do took %v", worst)
				}

				ctx, cancel := context.WithTimeout(r.ctx, 30*time.Millisecond)
				began := time.Now()
				_, err := rebuild(ctx, warm, "deadline", func(ctx context.Context) (string, error) {
					time.Sleep(time.Millisecond)
					return "v", nil
				})
				cancel()
				if took := time.Since(began); err != nil && !errors.Is(err, context.DeadlineExceeded) || took > 3*time.Second {
					t.Errorf("with 30 ms to live: %v after %v", err, took)
				}
				began = time.Now()
				err = warm.Invalidate(r.ctx, "x")
				if took := time.Since(began); !errors.Is(err, mutexrebuild.ErrUnavailable) || took > timeout+3*time.Second {
					t.Errorf("Invalidate: %v after %v", err, took)
				}

				strike.end(r.server, p)
				began = time.Now()
				r.eventually("Redis is used again", func() bool { return r.uses(warm, "x") })
				t.Logf("used again after %v", time.Since(began))
			})
		}
	}
}

// The wait for a free connection is part of the time: a caller waits for its turn in a
// lane for at most one RedisTimeout and for Redis for at most another. Without a limit
// it waits for as long as those before it take together.
func TestTheWaitForAConnectionCountsToo(t *testing.T) {
	t.Parallel()
	r := onServer(t)
	const timeout = 200 * time.Millisecond
	rdb := r.client(func(o *redis.Options) { o.PoolSize = 2 })
	g := r.with(rdb, opts{RedisTimeout: timeout})
	r.eventually("messages arrive", g.Live)
	r.want(g, "x", "v", gives("v"))
	r.server.Stop()
	defer r.server.Cont()
	var all sync.WaitGroup
	took, lag := make(chan time.Duration, 12*10), redistest.MeasureLag(t)
	for i := range 12 {
		all.Go(func() {
			time.Sleep(time.Duration(i) * timeout / 12) // so that one waits while another gives up
			for range 10 {
				began := time.Now()
				r.want(g, fmt.Sprint(i), "v", gives("v"))
				took <- time.Since(began)
			}
		})
	}
	all.Wait()
	late := 0
	for range cap(took) {
		if <-took >= lag.Allow(5*timeout/2) {
			late++
		}
	}
	t.Logf("%d of %d", late, cap(took))
	if late > cap(took)/20 { // a loaded machine may be late now and then
		t.Errorf("%d of %d callers took more than twice %v", late, cap(took), timeout)
	}
}

// A cluster whose nodes hang is as good as none.
func TestAnOutageOfAClusterCostsACallerOneTimeoutAndNoError(t *testing.T) {
	t.Parallel()
	const timeout = 100 * time.Millisecond
	c := redistest.Cluster(t)
	for name, obeys := range map[string]bool{"obeys contexts": true, "defaults": false} {
		change := func(o *redis.ClusterOptions) { o.ContextTimeoutEnabled = obeys }
		warm := c.Client(t, change)
		r := &rig{T: t, ctx: t.Context()}
		g := r.with(warm, opts{RedisTimeout: timeout})
		r.eventually("a hit", func() bool { return r.uses(g, "x") })
		fresh := r.with(c.Client(t, change), opts{RedisTimeout: timeout})
		for _, node := range c.Nodes {
			node.Stop()
		}
		for client, g := range map[string]*group{"warm": g, "fresh": fresh} {
			for i := range 10 {
				began := time.Now()
				r.want(g, fmt.Sprint(i), "v", gives("v"))
				if took := time.Since(began); took > timeout+3*time.Second {
					t.Errorf("%s, %s: a Do took %v", name, client, took)
				}
			}
		}
		for _, node := range c.Nodes {
			node.Cont()
		}
		r.eventually("the cluster is used again", func() bool { return r.uses(g, "x") })
	}
}

// A server that is full takes no value and no lease, and says so each time. It
// still forgets.
func TestAFullServerStillForgets(t *testing.T) {
	t.Parallel()
	r := onServer(t)
	g, other := r.group(opts{ErrorHold: -1}), r.group(opts{})
	ids := []string{"a", "b", "c", "d"}
	for _, id := range ids {
		r.want(g, id, "old", gives("old"))
	}
	db, at := newSource(), newGate()
	db.write("loading", "v")
	loading := r.do(other, "loading", db.gated("loading", at), nil)
	<-at.reached
	r.must(r.rdb.ConfigSet(r.ctx, "maxmemory", "1").Err())

	r.finds(g, "a", "old")
	close(at.open)
	loading.mustBe(r, nil) // its commit fails
	var all sync.WaitGroup
	var running atomic.Int32
	for range 20 {
		all.Go(func() {
			for range 5 {
				r.want(g, "new", "v", func(context.Context) (string, error) {
					defer running.Add(-1)
					if running.Add(1) > 1 {
						t.Error("two loads of a key at a time")
					}
					time.Sleep(time.Millisecond)
					return "v", nil
				})
			}
		})
	}
	all.Wait()

	r.must(g.Invalidate(r.ctx, "a"))
	r.must(g.Invalidate(r.ctx, "b", "c"))
	end, err := g.Hold(r.ctx, "d")
	r.must(err)
	for _, id := range ids {
		if r.stored(id) != "" {
			r.Errorf("%q is still there", id)
		}
	}
	held := r.rdb.HGetAll(r.ctx, leaseKey("d")).Val()
	if len(held) != 1 {
		r.Errorf("the lease of d is %q, want a hold", held)
	}
	r.loads(g, "d", "v")
	r.must(end(r.ctx))

	r.must(r.rdb.ConfigSet(r.ctx, "maxmemory", "0").Err())
	r.want(g, "a", "old", gives("old"))
	r.must(r.rdb.ConfigSet(r.ctx, "maxmemory", "1").Err())
	if err := set(r.ctx, g, "a", "new"); !errors.Is(err, mutexrebuild.ErrUnavailable) || !strings.Contains(err.Error(), "memory") {
		r.Errorf("Set: %v", err)
	}
	if r.stored("a") != "" {
		r.Errorf("Redis has %q: Set could not store the new value and left the old", r.stored("a"))
	}
	r.must(r.rdb.ConfigSet(r.ctx, "maxmemory", "0").Err())
	r.loads(g, "a", "new")
	r.finds(other, "a", "new")
}

// Operations that hang are not piled up without end, and those that come to no
// answer do not keep Close.
func TestCloseDuringAnOutage(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *redis.Options) { o.ReadTimeout, o.DialTimeout = 300*time.Millisecond, 300*time.Millisecond })
	g, err := newGroup(rdb, opts{RedisTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 30*time.Second, "live", g.Live)
	s.Stop()
	defer s.Cont()
	for i := range 50 {
		if _, err := rebuild(t.Context(), g, fmt.Sprint(i), gives("v")); err != nil {
			t.Error(err)
		}
	}
	began := time.Now()
	g.Close()
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("Close took %v", took)
	}
}
