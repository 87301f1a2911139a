package cache_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

const defaultTimeout = 250 * time.Millisecond // see Options.RedisTimeout

// An outage is a way in which Redis fails.
type outage struct {
	name       string
	begin, end func(s *redistest.Server, p *redistest.FaultProxy)
}

var outages = []outage{
	{"frozen", func(s *redistest.Server, _ *redistest.FaultProxy) { s.Stop() }, func(s *redistest.Server, _ *redistest.FaultProxy) { s.Cont() }},
	{"gone", func(s *redistest.Server, p *redistest.FaultProxy) { s.Kill() }, func(s *redistest.Server, _ *redistest.FaultProxy) { s.Restart() }},
	{"slow", func(_ *redistest.Server, p *redistest.FaultProxy) { p.Delay(500 * time.Millisecond) }, heal},
	{"black hole", func(_ *redistest.Server, p *redistest.FaultProxy) { p.Blackhole(true) }, heal},
	{"cut and refused", func(_ *redistest.Server, p *redistest.FaultProxy) { p.Refuse(true); p.Cut() }, heal},
	{"half replies", func(_ *redistest.Server, p *redistest.FaultProxy) { p.Limit(3) }, heal},
	{"dripping", func(_ *redistest.Server, p *redistest.FaultProxy) { p.Slice(1, 20*time.Millisecond) }, heal},
}

func heal(_ *redistest.Server, p *redistest.FaultProxy) { p.Heal() }

// clients are settings of the user's client. An outage must be survived with each of them.
var clients = map[string]func(*redis.Options){
	"client as it comes": func(*redis.Options) {},
	"client as advised": func(o *redis.Options) {
		o.ReadTimeout, o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = 500*time.Millisecond, 1, 1, true
	},
}

func duringOutages(t *testing.T, test func(r *rig, server *redistest.Server, proxy *redistest.FaultProxy, o outage, set func(*redis.Options))) {
	for name, set := range clients {
		for _, o := range outages {
			if name != "client as advised" && o.name != "frozen" && o.name != "gone" && redistest.Pick(true, false) {
				continue
			}
			t.Run(o.name+", "+name, func(t *testing.T) {
				server := redistest.Start(t)
				proxy := redistest.Proxy(t, server.Addr())
				test(onFailing(t, server, cell{redis: "real", breaker: true}), server, proxy, o, set)
			})
		}
	}
}

// Get works as long as the source does: it takes one or two RedisTimeouts longer, and keeps to the
// breaker's smaller limit, because every process may be loading.
func TestAnOutageOfRedisNeverReachesTheReaders(t *testing.T) {
	t.Parallel()
	duringOutages(t, func(r *rig, server *redistest.Server, proxy *redistest.FaultProxy, o outage, set func(*redis.Options)) {
		source := newRows(r, 1, 2, 3)
		c := openOn(r, proxy.Client(r, set), source.source())
		c.gives(r, 1, "v1")

		o.begin(server, proxy)
		lag := redistest.MeasureLag(r)
		var worst atomic.Int64
		var wg sync.WaitGroup
		for caller := range 8 {
			wg.Go(func() {
				for i := range 4 {
					key := int64(1 + (caller+i)%4) // the last one does not exist
					began := time.Now()
					got, err := c.Get(r.ctx, key)
					if took := int64(time.Since(began)); took > worst.Load() {
						worst.Store(took)
					}
					if key == 4 && !errors.Is(err, cache.ErrNotFound) || key != 4 && (err != nil || got != "v1") {
						r.Errorf("Get(%d): %q, %v", key, got, err)
					}
				}
			})
		}
		wg.Wait()
		// One read, and on the worst day a begin and a commit, and a second for a busy machine.
		if took, most := time.Duration(worst.Load()), lag.Allow(3*defaultTimeout+time.Second); took > most {
			r.Errorf("a Get took %v, more than %v", took, most)
		}
		if n := source.atOnce(); n > 1 {
			r.Errorf("%d loads of one key at one time in one process", n)
		}

		o.end(server, proxy)
		r.eventually("Redis is used again", func() bool {
			got, err := c.Fetch(r.ctx, 1)
			if err != nil || got.Value != "v1" {
				r.Errorf("after the outage: %+v, %v", got, err)
			}
			return got.Tier == cache.TierRedis
		})
	})
}

// Get returns at the caller's deadline. go-redis alone holds a caller for five seconds here.
func TestADeadlineIsKeptWhateverRedisDoes(t *testing.T) {
	t.Parallel()
	duringOutages(t, func(r *rig, server *redistest.Server, proxy *redistest.FaultProxy, o outage, set func(*redis.Options)) {
		source := newRows(r, 1, 2, 3)
		source.slowly(func(ctx context.Context, _ int64) error { // the database is slow as well
			select {
			case <-time.After(3 * time.Second):
			case <-ctx.Done():
			}
			return ctx.Err()
		})
		c := openOn(r, proxy.Client(r, set), source.source())
		o.begin(server, proxy)
		lag := redistest.MeasureLag(r)
		var worst atomic.Int64
		var wg sync.WaitGroup
		for caller := range 16 {
			wg.Go(func() {
				for range 3 {
					ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
					began := time.Now()
					_, err := c.Get(ctx, int64(1+caller%3))
					took := int64(time.Since(began))
					cancel()
					if took > worst.Load() {
						worst.Store(took)
					}
					if err != nil && !errors.Is(err, context.DeadlineExceeded) {
						r.Errorf("Get: %v", err)
					}
				}
			})
		}
		wg.Wait()
		took, most := time.Duration(worst.Load()), lag.Allow(time.Second)
		if took > most {
			r.Errorf("a Get with 100 ms took %v, more than %v", took, most)
		}
		r.Logf("the longest of 48 Gets with 100 ms took %v", took)
		o.end(server, proxy)
		r.eventually("Redis answers", func() bool { return r.rdb.Ping(r.ctx).Err() == nil })
	})
}

// A writer gets ErrNotInvalidated if Redis does not confirm its change.
func TestWritersLearnOfAnOutage(t *testing.T) {
	t.Parallel()
	duringOutages(t, func(r *rig, server *redistest.Server, proxy *redistest.FaultProxy, o outage, set func(*redis.Options)) {
		source := newRows(r, 1)
		c := openOn(r, proxy.Client(r, set), source.source())
		o.begin(server, proxy)
		lag := redistest.MeasureLag(r)
		ran := false
		for op, call := range map[string]func() error{
			"Invalidate": func() error { return c.Invalidate(r.ctx, 1) },
			"Set":        func() error { return c.Set(r.ctx, 1, "v2") },
			"Announce":   func() error { return c.Announce(r.ctx, 1) },
			"Write": func() error {
				return c.Write(r.ctx, []int64{1}, func(context.Context) error { ran = true; return nil })
			},
		} {
			began := time.Now()
			err := call()
			if !errors.Is(err, cache.ErrNotInvalidated) || errors.Is(err, cache.ErrUnavailable) || errors.Is(err, cache.ErrNotFound) {
				r.Errorf("%s: %v", op, err)
			}
			// A Write asks twice, and behind operations that hang one may wait for its place
			// as long as for its answer; by then three have had none, and that is an outage. A second is
			// for a busy machine.
			if took, most := time.Since(began), lag.Allow(3*defaultTimeout+time.Second); took > most {
				r.Errorf("%s took %v, more than %v", op, took, most)
			}
		}
		if !ran {
			r.Error("Redis kept the transaction from running")
		}
		o.end(server, proxy)
		r.eventually("Redis confirms", func() bool { return c.Invalidate(r.ctx, 1) == nil })
		c.gives(r, 1, "v1")
	})
}

// Every process loads for itself while Redis is gone, and the database gets all these loads at once.
// So each process keeps to the smaller limit.
func TestLoadsDuringAnOutageKeepToTheSmallerLimit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real"})
	source := newRows(r)
	source.slowly(func(context.Context, int64) error { time.Sleep(10 * time.Millisecond); return nil })
	c := open(r, source.source(), func(o *cache.Options) {
		o.Breaker = redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 32, MaxDegraded: 3, QueueTimeout: 20 * time.Second}))
	})
	next := int64(1000)
	all := func() int {
		var wg sync.WaitGroup
		for range 24 {
			key := next
			next++
			wg.Go(func() { c.gives404(r, key) })
		}
		wg.Wait()
		return source.allAtOnce()
	}
	server.Kill()
	if n := all(); n > 3 {
		t.Errorf("%d loads at one time", n)
	}
	server.Restart()
	r.eventually("Redis is used again", func() bool {
		_ = c.Invalidate(r.ctx, 100)
		unknown := c.Stats().Rebuild.Unknown
		c.gives404(r, 100)
		return c.Stats().Rebuild.Unknown == unknown
	})
	r.eventually("with Redis more than 3 loads run at one time", func() bool { return all() > 3 })
}
