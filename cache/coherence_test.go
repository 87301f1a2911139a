package cache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

// Two processes with local tiers read the same keys while one of them changes
// them. Of each version a reader remembers when a Get began that returned it for
// the last time; the writer knows when it was superseded. The times are those of
// one machine.

// database is a table of versions in Redis, for processes to share.
type database struct{ rdb redis.UniversalClient }

func (d database) load(ctx context.Context, key int64) (int64, error) {
	version, err := d.rdb.Get(ctx, fmt.Sprintf("foreign:%d", key)).Int64()
	if err != nil {
		return 0, err
	}
	// The read has happened; what it brought takes its time to arrive.
	time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Millisecond))))
	return version, nil
}

func (d database) put(ctx context.Context, key, version int64) error {
	return d.rdb.Set(ctx, fmt.Sprintf("foreign:%d", key), version, time.Hour).Err()
}

// sightings say when the last Get began that returned a version of a key.
type sightings struct {
	rounds atomic.Int64 // that somebody has read all keys
	mu     sync.Mutex
	last   map[[2]int64]time.Time // guarded by mu
}

func (s *sightings) see(key, version int64, began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := [2]int64{key, version}; began.After(s.last[id]) {
		s.last[id] = began
	}
}

// watch reads all keys over and over until ctx ends.
func (s *sightings) watch(ctx context.Context, keys int64, get func(context.Context, int64) (int64, error)) error {
	for n, key := int64(1), rand.Int64N(keys); ctx.Err() == nil; n, key = n+1, (key+1)%keys {
		if n%keys == 0 {
			s.rounds.Add(1)
		}
		began := time.Now()
		version, err := get(ctx, key)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		s.see(key, version, began)
		time.Sleep(100 * time.Microsecond)
	}
	return nil
}

// openShared opens the cache that both processes have: its entries would stay for
// an hour.
func openShared(rdb redis.UniversalClient, db database) (*cache.Cache[int64, int64], error) {
	return cache.New(rdb, db.load, cache.Options{
		Name: "shared", TTL: time.Hour, Local: localcache.Options{TTL: time.Hour},
		RedisTimeout: 5 * time.Second, // a busy machine is no outage
	})
}

// reader is the other process. It reads until it is told to stop, and then says
// what it has seen.
func reader(p *redistest.Parent, args []string) error {
	rdb, direct := redis.NewClient(&redis.Options{Addr: args[0]}), redis.NewClient(&redis.Options{Addr: args[0]})
	defer rdb.Close()
	defer direct.Close()
	c, err := openShared(rdb, database{direct})
	if err != nil {
		return err
	}
	defer c.Close()
	for !c.Stats().Live {
		time.Sleep(time.Millisecond)
	}
	p.Say("ready")

	lag := redistest.StartLagMeter()
	seen := sightings{last: map[[2]int64]time.Time{}}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	failed := make(chan error, 4)
	keys, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	for range cap(failed) {
		go func() { failed <- seen.watch(ctx, keys, c.Get) }()
	}
	go func() { // how much this has tested so far
		for ctx.Err() == nil {
			_ = direct.Set(ctx, readersHits, c.Stats().Local, 0).Err()
			time.Sleep(5 * time.Millisecond)
		}
	}()
	p.Next() // stop
	cancel()
	for range cap(failed) {
		err = errors.Join(err, <-failed)
	}
	lag.Stop()
	for id, began := range seen.last {
		p.Say("seen %d %d %d", id[0], id[1], began.UnixNano())
	}
	p.Say("local %d lag %d", c.Stats().Local, lag.Worst())
	return err
}

// readersHits is a key that holds the hits of the reader's local tier so far.
const readersHits = "hits of the reader"

func hitsOfReader(ctx context.Context, rdb *redis.Client) int64 {
	n, _ := rdb.Get(ctx, readersHits).Int64()
	return n
}

// staleness runs updates against the reads of both processes and returns the
// longest time after an update at which a Get began that did not see it, in this
// and in the other process, and what the machine may have added.
func staleness(t *testing.T, server *redistest.Server, keys int64, meanwhile func(ctx context.Context, seen *sightings)) (own, other, lag time.Duration) {
	t.Helper()
	rdb := server.Client(t)
	db := database{server.Client(t)}
	for key := range keys {
		if err := db.put(t.Context(), key, 0); err != nil {
			t.Fatal(err)
		}
	}
	c := redistest.Must(openShared(rdb, db))
	defer c.Close()
	child := redistest.Child(t, "reader", server.Addr(), strconv.FormatInt(keys, 10))
	child.Expect("ready")
	redistest.Eventually(t, 20*time.Second, "the cache hears its heartbeat", func() bool { return c.Stats().Live })

	meter := redistest.MeasureLag(t)
	seen := sightings{last: map[[2]int64]time.Time{}}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := seen.watch(ctx, keys, c.Get); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() { meanwhile(ctx, &seen) })
	superseded := update(t, c, db, keys, redistest.Pick(3*time.Second, time.Minute), func() bool { return hitsOfReader(ctx, rdb) >= 100 })
	time.Sleep(50 * time.Millisecond) // for reads that should not be there
	cancel()
	wg.Wait()

	after := func(id [2]int64, began time.Time) time.Duration {
		if at, ok := superseded[id]; ok {
			return began.Sub(at)
		}
		return -time.Hour // the last version
	}
	for id, began := range seen.last {
		own = max(own, after(id, began))
	}
	child.Send("stop")
	var local uint64
	for {
		var id [2]int64
		var began, childLag int64
		line, ok := child.Next()
		if n, _ := fmt.Sscanf(line, "seen %d %d %d", &id[0], &id[1], &began); n == 3 {
			other = max(other, after(id, time.Unix(0, began)))
		} else if n, _ := fmt.Sscanf(line, "local %d lag %d", &local, &childLag); n == 2 {
			lag = meter.Allow(10 * time.Duration(childLag))
			break
		} else if !ok {
			t.Fatal("the reader is gone")
		}
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
	if local < 100 {
		t.Errorf("only %d hits in the reader's local tier: this tests nothing", local)
	}
	t.Logf("%d updates; last stale read begun %v after an update in the writer's process, %v in the other; the machine may have added %v",
		len(superseded), max(own, 0), max(other, 0), lag)
	return own, other, lag
}

// update changes keys for some time, in each of the ways there are, and returns
// when the call returned after which a version may not be seen any more.
func update(t *testing.T, c *cache.Cache[int64, int64], db database, keys int64, length time.Duration, enough func() bool) map[[2]int64]time.Time {
	superseded := map[[2]int64]time.Time{}
	versions := make([]int64, keys)
	// On a busy machine it may take long before the reader has read anything twice.
	for began := time.Now(); time.Since(began) < length || time.Since(began) < length+time.Minute && !enough(); time.Sleep(2 * time.Millisecond) {
		key := rand.Int64N(keys)
		old, version := versions[key], versions[key]+1
		var err error
		switch rand.IntN(3) {
		case 0:
			err = c.Write(t.Context(), []int64{key}, func(ctx context.Context) error { return db.put(ctx, key, version) })
		case 1:
			if err = db.put(t.Context(), key, version); err == nil {
				err = c.Set(t.Context(), key, version)
			}
		default:
			if err = db.put(t.Context(), key, version); err == nil {
				err = c.Invalidate(t.Context(), key)
			}
		}
		if err != nil {
			t.Errorf("update: %v", err)
			return superseded
		}
		superseded[[2]int64{key, old}] = time.Now()
		versions[key] = version
	}
	return superseded
}

// This catches a local tier that is not told, one that fills with what an
// invalidation has overtaken, and one that deletes before Redis does.
func TestLocalTiersFollowAnInvalidation(t *testing.T) {
	t.Parallel()
	own, other, lag := staleness(t, redistest.Start(t), 8, func(context.Context, *sightings) {})
	if own > 0 {
		t.Errorf("in the writer's process a Get begun %v after the update returned what was there before", own)
	}
	if bound := 50*time.Millisecond + lag; other > bound {
		t.Errorf("in the other process a Get begun %v after the update returned what was there before; the bound is %v", other, bound)
	}
}

// What is published while the link is down is lost, so a new link has to begin
// with a flush: without it, the entries would stay for an hour.
func TestLocalTiersFollowThoughTheLinkIsKilledAllTheTime(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	killer := server.Client(t)
	// So many keys that the next update of one, whose message would end what the lost
	// one should have, does not come soon.
	own, other, lag := staleness(t, server, 500, func(ctx context.Context, seen *sightings) {
		for ctx.Err() == nil {
			rounds, hits := seen.rounds.Load(), hitsOfReader(ctx, killer)
			err := killer.ClientKillByFilter(ctx, "TYPE", "pubsub").Err()
			if err != nil && ctx.Err() == nil && !strings.Contains(err.Error(), "No such client") {
				t.Errorf("CLIENT KILL: %v", err)
			}
			time.Sleep(150 * time.Millisecond)
			for ctx.Err() == nil && (seen.rounds.Load() < rounds+4 || hitsOfReader(ctx, killer) < hits+20) { // by two: on a busy machine nothing would be in a local tier otherwise
				time.Sleep(time.Millisecond)
			}
		}
	})
	if own > 0 {
		t.Errorf("in the writer's process a Get begun %v after the update returned what was there before", own)
	}
	if bound := time.Second + lag; other > bound {
		t.Errorf("in the other process a Get begun %v after the update returned what was there before; the bound is %v", other, bound)
	}
}

// A link that is silent without being broken is what the heartbeat is for:
// without it, v1 would stay for an hour.
func TestASilentLinkIsNotTrusted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real", local: true})
	source := newRows(r, 1)
	long := func(o *cache.Options) { o.TTL, o.Local.TTL = time.Hour, time.Hour }
	writer := open(r, source.source(), long, calmly)

	type victim struct {
		*probe[int64, string]
		proxy *redistest.FaultProxy
	}
	victims := map[string]victim{}
	for name, silence := range map[string]func(*redistest.FaultProxy){
		"everything disappears":         func(p *redistest.FaultProxy) { p.Blackhole(true) },
		"old connections are forgotten": (*redistest.FaultProxy).BlackholeOld,
		"messages disappear":            func(p *redistest.FaultProxy) { p.DropMessages(true) },
	} {
		proxy := redistest.Proxy(t, server.Addr())
		c := openOn(r, proxy.Client(t), source.source(), long)
		victims[name] = victim{c, proxy}
		c.gives(r, 1, "v1")
		c.comesFrom(r, 1, cache.TierLocal)
		silence(proxy)
	}

	// Three heartbeats and the second for which an entry counts then, and the
	// second between two heartbeats: the last one may just have come. That is 4.2 s, and
	// as much again is for a busy machine.
	const bound, boundOfAFill = 8400 * time.Millisecond, 5 * time.Second
	source.put(1, "v2")
	if err := writer.Invalidate(r.ctx, 1); err != nil {
		t.Fatal(err)
	}
	updated := time.Now()
	var wg sync.WaitGroup
	for name, v := range victims {
		wg.Go(func() {
			took := waitFor(r, v.probe, "v2", updated)
			if took > bound {
				t.Errorf("%s: v1 was read for %v; the bound is %v", name, took, bound)
			}
			t.Logf("%s: v1 was read for %v", name, took)
		})
	}
	wg.Wait()

	// From now on an entry counts for a second from its fill.
	silent := victims["everything disappears"]
	r.eventually("a fill", func() bool {
		got, err := silent.Fetch(r.ctx, 1)
		return err == nil && got.Tier == cache.TierLocal
	})
	source.put(1, "v3")
	if err := writer.Invalidate(r.ctx, 1); err != nil {
		t.Fatal(err)
	}
	updated = time.Now()
	if took := waitFor(r, silent.probe, "v3", updated); took > boundOfAFill {
		t.Errorf("v2 was read for %v; the bound is %v", took, boundOfAFill)
	}

	for name, v := range victims {
		v.proxy.Heal()
		r.eventually(name+": the link lives again", func() bool { return v.Stats().Live && !v.Stats().LocalTier.Distrusted })
		if got := v.comesFrom(r, 1, cache.TierLocal); got.Value != "v3" {
			t.Errorf("%s: in the end %+v", name, got)
		}
	}
}

// A link may come to life after it has lost messages. What was filled meanwhile
// counted for a second; without a flush it would count for an hour from here on.
func TestALinkThatComesToLifeBeginsWithAFlush(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real", local: true})
	r.deaf, r.patient = true, true
	source := newRows(r, 1)
	proxy := redistest.Proxy(t, server.Addr())
	proxy.DropMessages(true)
	long := func(o *cache.Options) { o.TTL, o.Local.TTL, o.Local.DistrustTTL = time.Hour, time.Hour, time.Minute }
	c, writer := openOn(r, proxy.Client(t), source.source(), long), open(r, source.source(), long)
	r.eventually("the link stands", func() bool { return c.Stats().LocalTier.Flushes > 0 })
	c.gives(r, 1, "v1")
	c.comesFrom(r, 1, cache.TierLocal)
	source.put(1, "v2")
	if err := writer.Invalidate(r.ctx, 1); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // for the message to be lost, which nothing tells
	c.gives(r, 1, "v1")
	proxy.DropMessages(false)
	r.eventually("the link lives", func() bool { return c.Stats().Live && !c.Stats().LocalTier.Distrusted })
	c.gives(r, 1, "v2")
}

// waitFor reads key 1 until it is want and returns how long after since a Get
// began that returned something else.
func waitFor(r *rig, c *probe[int64, string], want string, since time.Time) (stale time.Duration) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		began := time.Now()
		got, err := c.Get(r.ctx, 1)
		if err != nil {
			r.Errorf("Get: %v", err)
			return stale
		}
		if got == want {
			return stale
		}
		stale = began.Sub(since)
	}
	r.Errorf("%s is never read", want)
	return stale
}
