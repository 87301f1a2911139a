package cache_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

const defaultTimeout = 250 * time.Millisecond // see Options.RedisTimeout

// An outage is a way for Redis to be of no use.
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

// clients are the user's settings that an outage has to be survived with.
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
				server := start(t)
				proxy := redistest.Proxy(t, server.Addr())
				test(onServer(t, server, cell{redis: "real", breaker: true}), server, proxy, o, set)
			})
		}
	}
}

// While the source answers, so does Get: at the cost of a RedisTimeout or two, and
// within the breaker's smaller limit, because every process may be loading.
func TestAnOutageOfRedisNeverReachesTheReaders(t *testing.T) {
	duringOutages(t, func(r *rig, server *redistest.Server, proxy *redistest.FaultProxy, o outage, set func(*redis.Options)) {
		source := newRows(r, 1, 2, 3)
		c := openOn(r, proxy.Client(r, set), source.source())
		c.gives(r, 1, "v1")

		o.begin(server, proxy)
		lag := measureLag(r)
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
		// One read, and on the worst day a begin and a commit.
		if took, most := time.Duration(worst.Load()), lag.allow(3*defaultTimeout+50*time.Millisecond); took > most {
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

// When Redis is gone every process loads for itself, and the database gets all of
// them at once: so each restrains itself to the smaller limit.
func TestLoadsDuringAnOutageKeepToTheSmallerLimit(t *testing.T) {
	server := start(t)
	r := onServer(t, server, cell{redis: "real"})
	source := newRows(r)
	source.slowly(func(context.Context, int64) error { time.Sleep(10 * time.Millisecond); return nil })
	c := open(r, source.source(), func(o *cache.Options) {
		o.Breaker = must(breaker.New(breaker.Options{MaxConcurrent: 32, MaxDegraded: 3, QueueTimeout: 20 * time.Second}))
	})
	all := func() int {
		var wg sync.WaitGroup
		for key := range int64(24) {
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
	if n := all(); n <= 3 {
		t.Errorf("with Redis no more than %d loads at one time", n)
	}
}

// go-redis alone holds a caller for five seconds here.
func TestADeadlineIsKeptWhateverRedisDoes(t *testing.T) {
	duringOutages(t, func(r *rig, server *redistest.Server, proxy *redistest.FaultProxy, o outage, set func(*redis.Options)) {
		source := newRows(r, 1, 2, 3)
		source.slowly(func(ctx context.Context, _ int64) error { // the database is slow as well
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			return ctx.Err()
		})
		c := openOn(r, proxy.Client(r, set), source.source())
		o.begin(server, proxy)
		lag := measureLag(r)
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
		took, most := time.Duration(worst.Load()), lag.allow(150*time.Millisecond)
		if took > most {
			r.Errorf("a Get with 100 ms took %v, more than %v", took, most)
		}
		r.Logf("the longest of 48 Gets with 100 ms took %v", took)
		o.end(server, proxy)
		r.eventually("Redis answers", func() bool { return r.rdb.Ping(r.ctx).Err() == nil })
	})
}

// Whoever changes something has to know that Redis did not confirm it.
func TestWritersLearnOfAnOutage(t *testing.T) {
	duringOutages(t, func(r *rig, server *redistest.Server, proxy *redistest.FaultProxy, o outage, set func(*redis.Options)) {
		source := newRows(r, 1)
		c := openOn(r, proxy.Client(r, set), source.source())
		o.begin(server, proxy)
		lag := measureLag(r)
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
			// as long as for its answer; by then three have had none, and that is an outage.
			if took, most := time.Since(began), lag.allow(3*defaultTimeout+50*time.Millisecond); took > most {
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

// The scripts are gone with the data, and so is everything we knew of others.
func TestARedisThatComesBackEmptyIsFilledAgain(t *testing.T) {
	server := start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	source := newRows(r, 1, 2)
	c, other := open(r, source.source()), open(r, source.source())
	for range 3 {
		server.Restart()
		r.eventually("everybody is connected again", func() bool { return c.Stats().Live && other.Stats().Live })
		r.eventually("a value is published", func() bool {
			_ = c.Invalidate(r.ctx, 2) // on a connection that is broken it may fail
			_, err := c.Get(r.ctx, 2)
			return err == nil && r.rdb.Exists(r.ctx, valueKey(2)).Val() == 1
		})
		if got := other.comesFrom(r, 2, cache.TierLocal); got.Value != "v1" {
			r.Errorf("%+v", got)
		}
	}
}

func TestALostScriptCacheCostsNobodyAnError(t *testing.T) {
	server := start(t)
	r := onServer(t, server, cell{redis: "real"})
	r.patient = true
	source := newRows(r, 1, 2, 3)
	c := open(r, source.source())
	for i := range 50 {
		if err := r.rdb.ScriptFlush(r.ctx).Err(); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if err := c.Invalidate(r.ctx, 1, 2, 3); err != nil { // these go in one pipeline, which has no fallback of its own
				t.Error(err)
			}
		} else if err := c.Write(r.ctx, []int64{1}, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if err := r.rdb.ScriptFlush(r.ctx).Err(); err != nil {
			t.Fatal(err)
		}
		c.gives(r, 1, "v1")
		if err := c.Set(r.ctx, 2, "v1"); err != nil {
			t.Error(err)
		}
		c.comesFrom(r, 2, cache.TierRedis)
	}
	if s := c.Stats(); s.Rebuild.Unknown != 0 || s.Degraded != 0 {
		t.Errorf("%+v", s)
	}
}

// sent counts the commands of a client.
type sent struct{ atomic.Int64 }

func (s *sent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.Add(1)
		return next(ctx, cmd)
	}
}

func (s *sent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// Invalidations free memory and clears need next to none, so they must not be refused for the lack
// of it; fills may be, and are not tried again and again. Catches a clear that begins with HSET: it
// stays pending, and until there is room its process takes nothing from Redis.
func TestAFullRedisStillInvalidates(t *testing.T) {
	server := start(t, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
	r := onServer(t, server, cell{redis: "real"})
	r.patient = true
	const many = 50
	source := newRows(r, 1, 2, 100)
	for key := int64(3); key < 3+many; key++ {
		source.put(key, "v1")
	}
	rdb, commands := r.client(), new(sent)
	rdb.AddHook(commands)
	c := openOn(r, rdb, source.tagged())
	c.gives(r, 1, "v1")
	c.gives(r, 100, "v1")
	blocks := 0
	fill := func() {
		for _, size := range []int{100_000, 1000, 10} {
			for r.rdb.Set(r.ctx, fmt.Sprint("foreign:", blocks), strings.Repeat("x", size), time.Hour).Err() == nil {
				blocks++
			}
		}
	}
	fill()
	c.gives(r, 1, "v1")
	before, began := commands.Load(), time.Now()
	for key := int64(3); key < 3+many; key++ {
		c.gives(r, key, "v1")
	}
	heartbeats := 2 * (1 + int64(time.Since(began)/time.Second)) // each with a look at the epoch
	if n := commands.Load() - before; n > 3*many+heartbeats {
		t.Errorf("%d commands for %d Gets", n, many)
	} else {
		t.Logf("%.2f commands a Get", float64(n)/many)
	}
	source.put(1, "v2")
	if err := c.Invalidate(r.ctx, 1); err != nil {
		t.Errorf("Invalidate: %v", err)
	}
	c.gives(r, 1, "v2")
	source.put(1, "v3")
	if err := c.Write(r.ctx, []int64{1}, func(context.Context) error { return nil }); err != nil {
		t.Errorf("Write: %v", err)
	}
	c.gives(r, 1, "v3")
	source.put(2, "v2")
	c.gives(r, 2, "v2")
	source.put(2, "v3")
	if err := c.Set(r.ctx, 2, strings.Repeat("y", 100_000)); err != nil && !errors.Is(err, cache.ErrNotInvalidated) {
		t.Errorf("Set: %v", err)
	}
	source.put(1, "v4")
	fill()
	if err := cache.Write(r.ctx, func(context.Context) error { return nil }, c.Tagged(tenant(0))); err != nil {
		t.Errorf("Write: %v", err)
	}
	c.comesFrom(r, 100, cache.TierRedis)
	source.put(1, "v5")
	fill()
	if err := c.ClearTags(r.ctx, tenant(0)); err != nil {
		t.Errorf("ClearTags: %v", err)
	}
	c.gives(r, 1, "v5")
	c.comesFrom(r, 100, cache.TierRedis)
	r.do(r.rdb.Del(r.ctx, clearsKey()).Err())
	fill()
	later := open(r, source.tagged())
	r.eventually("a process that starts now has read what was cleared", func() bool { return later.Stats().Live })
	source.put(100, "v2")
	fill()
	if err := c.Clear(r.ctx); err != nil {
		t.Errorf("Clear: %v", err)
	}
	c.gives(r, 100, "v2")
	if s := c.Stats().Rebuild; s.Unconfirmed > 0 {
		t.Errorf("%d invalidations are not confirmed", s.Unconfirmed)
	}
}

// While its replicas lag, a loader reads the old row. A degraded load asks nobody whether it
// may be kept, and without a bound the process that has written v2 served v1 for the whole life
// of a local entry.
func TestWhatADegradedLoadReadFromALaggingReplicaIsGoneInASecond(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		const lag = 5 * time.Second
		w, source := &way{}, newRows(r, 1)
		c := openOn(r, w.client(r, m), source.source(), func(o *cache.Options) { o.ReplicaLag = lag })
		c.gives(r, 1, "v1")
		if err := c.Invalidate(r.ctx, 1); err != nil { // v2 is written, and the replica has v1
			r.Fatal(err)
		}
		time.Sleep(time.Second)
		release := w.keepBack() // one reply is late
		c.gives(r, 1, "v1")
		release()
		if s := c.Stats(); s.Degraded != 1 || s.Rebuild.Outage {
			r.Errorf("no degraded load: %+v", s)
		}
		c.comesFrom(r, 1, cache.TierLocal) // a hot key is not loaded for each of its readers
		time.Sleep(lag)
		source.put(1, "v2")
		c.gives(r, 1, "v2")
	})
}

// During an outage of Redis other processes change values without our knowledge. A value that
// this process has kept is served for a second. After that the database, which is healthy,
// is asked for it: with the load left to the background the first of these was a minute old.
func TestDuringAnOutageTheDatabaseComesBeforeWhatIsKept(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true, breaker: true}, func(r *rig, m *redistest.MiniServer) {
		r.Cleanup(func() { time.Sleep(time.Minute) }) // go-redis goes on to dial for a while
		w, source := &way{}, newRows(r, 1, 2, 3, 4, 5)
		c := openOn(r, w.client(r, m), source.source(), ttl(time.Hour))
		c.gives(r, 1, "v1")
		time.Sleep(time.Minute)
		w.refuse()
		for key := int64(2); key <= 5; key++ { // until the outage is known
			c.gives(r, key, "v1")
		}
		if !c.Stats().Rebuild.Outage {
			r.Fatal("no outage")
		}
		shows := func(value string, loads int, stale bool) {
			r.Helper()
			before := source.loads(1)
			got, err := c.Fetch(r.ctx, 1)
			if n := source.loads(1) - before; err != nil || got.Value != value || got.Stale != stale || n != loads {
				r.Errorf("got %+v, %v with %d loads; want %s with %d, stale %v", got, err, n, value, loads, stale)
			}
		}
		source.put(1, "v2") // by another process, whose invalidation does not arrive
		shows("v2", 1, false)
		source.put(1, "v3")
		time.Sleep(800 * time.Millisecond) // the second is shortened by Jitter, like each life
		shows("v2", 0, false)
		time.Sleep(300 * time.Millisecond)
		shows("v3", 1, false)

		time.Sleep(2 * time.Second)
		source.slowly(func(context.Context, int64) error { return errBroken })
		shows("v3", 1, true)
		time.Sleep(100 * time.Millisecond)
		shows("v3", 0, true) // its error is held
		source.slowly(func(context.Context, int64) error { time.Sleep(time.Second); return nil })
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
		defer cancel()
		if got, err := c.Fetch(ctx, 1); err != nil || got.Value != "v3" || !got.Stale {
			r.Errorf("at the deadline of a caller: %+v, %v", got, err)
		}
		time.Sleep(time.Second)
		shows("v3", 0, false) // what the load that went on has brought
	})
}

// duringABusyOutage gives a cache in an outage that has kept the value of key 1. Its only place for a
// degraded load is taken for 0.9 s more, by the load of key 6, which wg waits for.
func duringABusyOutage(r *rig, m *redistest.MiniServer) (c *probe[int64, string], source *rows, wg *sync.WaitGroup) {
	r.Cleanup(func() { time.Sleep(time.Minute) })
	w := &way{}
	source, wg = newRows(r, 1, 2, 3, 4, 5, 6, 7), &sync.WaitGroup{}
	c = openOn(r, w.client(r, m), source.source(), ttl(time.Hour), func(o *cache.Options) {
		o.Breaker = must(breaker.New(breaker.Options{MaxDegraded: 1}))
	})
	c.gives(r, 1, "v1")
	time.Sleep(time.Minute)
	w.refuse()
	for key := int64(2); key <= 5; key++ {
		c.gives(r, key, "v1")
	}
	source.slowly(func(context.Context, int64) error { time.Sleep(time.Second); return nil })
	wg.Go(func() { c.gives(r, 6, "v1") })
	time.Sleep(100 * time.Millisecond)
	return c, source, wg
}

// Where no degraded place is free a kept value does not wait for one, and a key of which
// nothing is kept does.
func TestDuringAnOutageAKeptValueDoesNotWaitForAPlace(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		c, source, wg := duringABusyOutage(r, m)
		wg.Go(func() { c.gives(r, 7, "v1") })
		synctest.Wait()
		source.put(1, "v2")
		began := time.Now()
		if got, err := c.Fetch(r.ctx, 1); err != nil || got.Value != "v1" || !got.Stale || time.Since(began) > 0 {
			r.Errorf("got %+v, %v after %v", got, err, time.Since(began))
		}
		wg.Wait()
		if took := time.Since(began); took < 1900*time.Millisecond || source.loads(7) != 1 {
			r.Errorf("the key without a value has waited for %v", took)
		}
		time.Sleep(time.Second)
		c.gives(r, 1, "v2")
	})
}
