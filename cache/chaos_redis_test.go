package cache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// further outages are those that need a server of their own to go wrong in.
var further = []outage{
	{"busy with a script", func(s *redistest.Server, _ *redistest.FaultProxy) { busy(s) }, func(s *redistest.Server, _ *redistest.FaultProxy) { idle(s) }},
	{"loading", func(_ *redistest.Server, p *redistest.FaultProxy) {
		says(p, "GETRANGE", "-LOADING Redis is loading the dataset in memory")
		says(p, "EVALSHA", "-LOADING Redis is loading the dataset in memory")
	}, heal},
	{"a replica without its master", orphan("no"), adopt},
	{"a replica that reads", orphan("yes"), adopt},
	{"full", func(s *redistest.Server, _ *redistest.FaultProxy) { order(s, "CONFIG", "SET", "maxmemory", "1") },
		func(s *redistest.Server, _ *redistest.FaultProxy) { order(s, "CONFIG", "SET", "maxmemory", "0") }},
	{"no right to anything", func(s *redistest.Server, _ *redistest.FaultProxy) {
		order(s, "ACL", "SETUSER", "default", "-@all", "+acl", "+hello", "+auth", "+info", "+ping")
	}, func(s *redistest.Server, _ *redistest.FaultProxy) { order(s, "ACL", "SETUSER", "default", "+@all") }},
}

func says(p *redistest.FaultProxy, command, what string) {
	p.RewriteReplies(1<<30, command, func([]byte) []byte { return []byte(what + "\r\n") })
}

// order sends a server a command on a connection of its own.
func order(s *redistest.Server, args ...any) {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: -1})
	defer rdb.Close()
	if err := rdb.Do(context.Background(), args...).Err(); err != nil {
		panic(fmt.Sprint(args, ": ", err))
	}
}

// busy lets a script run for ever. After 20 ms the server says so to everybody; the
// script writes nothing, so it can be ended.
func busy(s *redistest.Server) {
	order(s, "CONFIG", "SET", "lua-time-limit", "20")
	go func() {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: -1, MaxRetries: -1})
		defer rdb.Close()
		rdb.Eval(context.Background(), "while true do end", nil)
	}()
}

func idle(s *redistest.Server) { order(s, "SCRIPT", "KILL") }

func orphan(serves string) func(*redistest.Server, *redistest.FaultProxy) {
	return func(s *redistest.Server, _ *redistest.FaultProxy) {
		order(s, "CONFIG", "SET", "replica-serve-stale-data", serves)
		order(s, "REPLICAOF", "127.0.0.1", "1")
	}
}

func adopt(s *redistest.Server, _ *redistest.FaultProxy) { order(s, "REPLICAOF", "NO", "ONE") }

// Four processes under load while Redis is of no use, with a client as it comes: no
// error, no caller beyond its deadline, no storm of connections, and the source gets
// no more than each process allows. What go-redis itself does here is to hold a
// caller for five seconds, and 583 new connections a second.
func TestChaosRedisIsOfNoUseUnderLoad(t *testing.T) {
	t.Parallel()
	for _, o := range append(outages, further...) {
		if redistest.Pick(true, false) && o.name != "frozen" {
			continue
		}
		t.Run(o.name, func(t *testing.T) { underLoad(t, o, func(*redis.Options) {}) })
	}
	if redistest.Pick(true, false) {
		return
	}
	t.Run("two connections", func(t *testing.T) {
		crowded := outage{"two connections", func(_ *redistest.Server, p *redistest.FaultProxy) { p.Delay(20 * time.Millisecond) }, heal}
		underLoad(t, crowded, func(o *redis.Options) { o.PoolSize = 2 })
	})
}

func underLoad(t *testing.T, o outage, set func(*redis.Options)) {
	const processes, keys, atMost, redisTimeout = 4, 500, 8, 50 * time.Millisecond
	length := redistest.Pick(1200*time.Millisecond, 10*time.Second)
	server := redistest.Start(t)
	proxy := redistest.Proxy(t, server.Addr())
	r := onServer(t, server, cell{redis: "real"})
	source := newRows(r)
	var loads visits // how long each took, which on a busy machine is not what it sleeps
	var mu sync.Mutex
	source.slowly(func(context.Context, int64) error {
		load := visit{began: time.Now()}
		time.Sleep(2 * time.Millisecond)
		load.took = time.Since(load.began)
		mu.Lock()
		defer mu.Unlock()
		loads = append(loads, load)
		return nil
	})
	var caches []*probe[int64, string]
	for range processes {
		caches = append(caches, openOn(r, proxy.Client(t, set), source.source(), func(o *cache.Options) {
			o.RedisTimeout = redisTimeout
			o.Breaker = redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 2 * atMost, MaxDegraded: atMost, QueueTimeout: 3 * time.Second}))
		}))
	}
	for key := range int64(keys) {
		source.put(key, "v1")
		caches[key%processes].gives(r, key, "v1")
	}
	pick := func() int64 { return rand.Int64N(keys) }
	patient := crowd{caches: caches, callers: 8, pause: 16 * time.Millisecond, patience: 3 * time.Second, pick: pick}
	hurried := crowd{caches: caches, callers: 16, pause: 32 * time.Millisecond, patience: 100 * time.Millisecond, pick: pick}

	opened, goroutines := proxy.Opened(), 0
	lag := redistest.MeasureLag(t)
	began := time.Now()
	o.begin(server, proxy)
	patientHome, hurriedHome := patient.gather(r), hurried.gather(r)
	for time.Since(began) < length {
		goroutines = max(goroutines, runtime.NumGoroutine())
		time.Sleep(10 * time.Millisecond)
	}
	calm, haste := patientHome(), hurriedHome()
	opened = proxy.Opened() - opened
	seconds := time.Since(began).Seconds()
	o.end(server, proxy)
	ended := time.Now()
	r.eventually("Redis is used again", func() bool { return usesRedis(r, caches) })
	again := time.Since(ended)

	settled := func(all visits) time.Duration {
		return all.between(began.Add(time.Second), began.Add(length)).took(0.99)
	}
	mu.Lock()
	t.Logf("with 3 s: %v; after the first second p99 %v, that of the loads alone %v", calm, settled(calm), settled(loads))
	mu.Unlock()
	t.Logf("with 100 ms: %v", haste)
	t.Logf("%d new connections in %.1f s by %d processes; at most %d loads at one time, %d of one key; at most %d goroutines; used again after %v; lag %v",
		opened, seconds, processes, source.allAtOnce(), source.atOnce(), goroutines, again, lag.Worst())
	// Where goroutines stand still for twice as long as Redis may, deadlines pass in this process.
	// Then errors are judged by what they are, and not by when they come.
	starved := lag.Worst() > 2*redisTimeout
	mayFail := []error(nil)
	if starved {
		mayFail = []error{context.DeadlineExceeded, breaker.ErrLimited}
	}
	if bad := calm.failed(mayFail...); len(bad) > 0 {
		t.Errorf("%d Gets failed, as that of %d: %v after %v", len(bad), bad[0].key, bad[0].err, bad[0].took)
	}
	if bad := haste.failed(context.DeadlineExceeded, breaker.ErrLimited); len(bad) > 0 { // refused at once, if their turn could not be expected in time
		t.Errorf("%d Gets failed otherwise than by their deadline, as that of %d: %v", len(bad), bad[0].key, bad[0].err)
	}
	if took, most := haste.took(1), lag.Allow(time.Second); took > most && !starved {
		t.Errorf("a Get with 100 ms took %v, more than %v", took, most)
	}
	// Those who were in a read when it began lose their connections at once. Where connections are
	// accepted and closed, go-redis opens some 25 a second for what levee asks of it.
	if most := int(processes * (20 + 35*seconds)); opened > most {
		t.Errorf("%d new connections, more than %d", opened, most)
	}
	if n := source.allAtOnce(); n > processes*2*atMost || source.atOnce() > processes {
		t.Errorf("%d loads at one time, %d of one key", n, source.atOnce())
	}
}

// A server that forgets its scripts a hundred times a second costs a round trip now
// and then, and nobody an error.
func TestChaosScriptsAreForgottenUnderLoad(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real"})
	source := newRows(r)
	var caches []*probe[int64, string]
	for range 4 {
		caches = append(caches, open(r, source.source(), calmly))
	}
	const keys = 50
	for key := range int64(keys) {
		source.put(key, "v1")
	}
	ctx, stop := context.WithTimeout(r.ctx, redistest.Pick(500*time.Millisecond, 10*time.Second))
	defer stop()
	home := crowd{caches: caches, callers: 4, pause: time.Millisecond, patience: 20 * time.Second, pick: func() int64 { return rand.Int64N(keys) }}.gather(r)
	var wg sync.WaitGroup
	writes, flushes := 0, 0
	wg.Go(func() {
		for ctx.Err() == nil {
			key := rand.Int64N(keys)
			if err := caches[0].Invalidate(r.ctx, key, (key+1)%keys, (key+2)%keys); err != nil {
				t.Errorf("Invalidate: %v", err)
			}
			if err := caches[1].Set(r.ctx, key, "v1"); err != nil {
				t.Errorf("Set: %v", err)
			}
			writes++
		}
	})
	for ; ctx.Err() == nil; flushes++ {
		if err := r.rdb.ScriptFlush(r.ctx).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	wg.Wait()
	got := home()
	t.Logf("%d flushes, %d writes; %v", flushes, writes, got)
	if bad := got.failed(); len(bad) > 0 {
		t.Errorf("%d Gets failed, as that of %d: %v", len(bad), bad[0].key, bad[0].err)
	}
	for _, c := range caches {
		if s := c.Stats(); s.Rebuild.Unknown != 0 || s.Degraded != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// calmly is for tests that are not about a slow Redis: a busy machine is no outage.
func calmly(o *cache.Options) { o.RedisTimeout = 5 * time.Second }

// A Redis that was killed comes back empty while four processes read. From the moment
// that all of them use it again each key is built once, though everybody wants the
// popular ones at the same time. Loads without a lease do not count against it, for they
// have nothing to share their value under: those before that moment, and those for which a
// busy machine took longer than RedisTimeout.
func TestChaosRedisComesBackEmptyUnderLoad(t *testing.T) {
	t.Parallel()
	const keys = 10_000
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source := newRows(r)
	var caches []*probe[int64, string]
	for range 4 {
		caches = append(caches, open(r, source.source(), func(o *cache.Options) {
			o.RedisTimeout = time.Second
			o.Breaker = redistest.Must(breaker.New(breaker.Options{QueueTimeout: 10 * time.Second}))
		}))
	}
	for key := range int64(keys) {
		source.put(key, "v1")
	}
	var mu sync.Mutex
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, keys-1) // guarded by mu
	readers := crowd{caches: caches, callers: 16, pause: 30 * time.Millisecond, patience: 20 * time.Second, pick: func() int64 {
		mu.Lock()
		defer mu.Unlock()
		return int64(zipf.Uint64())
	}}
	home := readers.gather(r)
	time.Sleep(redistest.Pick(500*time.Millisecond, 5*time.Second)) // it warms up
	alone := func() (loads int) {                                   // without a lease
		for _, c := range caches {
			loads += int(c.Stats().Degraded)
		}
		return loads
	}
	before := alone()
	source.forget()
	died := time.Now()
	server.Restart()
	r.eventually("all use it again", func() bool {
		return !slices.ContainsFunc(caches, func(c *probe[int64, string]) bool { return c.Set(r.ctx, keys, "v1") != nil || c.Stats().Rebuild.Outage })
	})
	back := time.Now()
	away, extra := source.all(), alone()-before
	time.Sleep(redistest.Pick(time.Second, 20*time.Second))
	got := home()
	keysRead := map[int64]bool{}
	for _, v := range got.between(died.Add(-time.Second), time.Now()) {
		keysRead[v.key] = true
	}
	later, lone := source.all()-away, alone()-before-extra
	t.Logf("%v; 99 %% answered after %v; %d loads of %d keys, %d in the %v until it was back, %d of them without a lease; of the later ones %d had none; at most %d of one key at one time",
		got, got.recovered(died), away+later, len(keysRead), away, back.Sub(died), extra, lone, source.atOnce())
	if later-lone > len(keysRead)*102/100 {
		t.Errorf("%d loads of %d keys since it was back, %d of them without a lease", later, len(keysRead), lone)
	}
	if lone > len(keysRead)/4 { // none with a load of 31 on two processors
		t.Errorf("%d of %d loads since it was back have no lease", lone, later)
	}
	if n := source.atOnce(); n > len(caches) {
		t.Errorf("%d loads of one key at one time", n)
	}
	if bad := got.failed(); len(bad) > 0 {
		t.Errorf("%d Gets failed, as that of %d: %v", len(bad), bad[0].key, bad[0].err)
	}
}

// What cannot be written is told to the writer, tried again, and in place soon after
// the server takes writes again: also in the processes that did not write.
func TestChaosWritesWhileRedisTakesNone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real"})
	source := newRows(r)
	writer, other := open(r, source.source()), open(r, source.source(), calmly)
	const keys = 500
	for key := range int64(keys) {
		source.put(key, "v1")
		writer.gives(r, key, "v1")
	}
	orphan("yes")(server, nil)
	began := time.Now()
	for first := 0; first < keys || time.Since(began) < redistest.Pick(time.Second, 5*time.Second); first += 50 {
		var some []int64
		for i := range 50 {
			some = append(some, int64((first+i)%keys))
			source.put(some[i], "v2")
		}
		if err := writer.Invalidate(r.ctx, some...); !errors.Is(err, cache.ErrNotInvalidated) {
			t.Fatalf("Invalidate: %v", err)
		}
		for _, key := range some {
			writer.gives(r, key, "v2") // in its own process it holds at once
		}
	}
	adopt(server, nil)
	ended := time.Now()
	r.eventually("everything is confirmed", func() bool { return writer.Stats().Rebuild.Unconfirmed == 0 })
	took := time.Since(ended)
	for key := range int64(keys) {
		other.gives(r, key, "v2")
	}
	t.Logf("%d invalidations that Redis refused were in place %v after it took them again", keys, took)
	if took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
}
