package cache_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// While the sentinels replace a master that died, nobody who reads gets an error or
// waits beyond its deadline, and the new master is used as soon as it is one.
func TestChaosAFailoverFailsNoGet(t *testing.T) {
	servers := redistest.Sentinel(t)
	r := newRig(t, cell{redis: "real"}, func() redis.UniversalClient { return servers.Client(t) })
	source := newRows(r)
	source.slowly(func(context.Context, int64) error { time.Sleep(2 * time.Millisecond); return nil })
	const keys = 200
	var caches []*probe[int64, string]
	for range 3 {
		caches = append(caches, open(r, source.source()))
	}
	for key := range int64(keys) {
		source.put(key, "v1")
		caches[0].gives(r, key, "v1")
	}
	for round := range redistest.Pick(1, 3) {
		home := crowd{caches: caches, callers: 8, pause: 10 * time.Millisecond, patience: 3 * time.Second, pick: func() int64 { return rand.Int64N(keys) }}.gather(r)
		time.Sleep(200 * time.Millisecond)
		source.forget()
		lag := redistest.MeasureLag(t)
		killed := time.Now()
		old := servers.KillMaster()
		servers.Promoted(old)
		promoted := time.Since(killed)
		r.eventually("a value is published on the new master", func() bool { return usesRedis(r, caches) })
		used := time.Since(killed)
		got := home()
		t.Logf("failover %d: promoted after %v, used by all after %v; %v; %d loads, at most %d at one time, %d of one key",
			round, promoted, used, got, source.all(), source.allAtOnce(), source.atOnce())
		var mayFail []error
		if lag.Worst() > defaultTimeout { // then deadlines pass in this process
			mayFail = append(mayFail, context.DeadlineExceeded)
		}
		if bad := got.failed(mayFail...); len(bad) > 0 {
			t.Errorf("%d Gets failed, as that of %d: %v after %v", len(bad), bad[0].key, bad[0].err, bad[0].took)
		}
		if took, most := got.took(1), lag.Allow(time.Second); took > most && redistest.Pick(false, true) {
			t.Errorf("a Get took %v, more than %v", took, most)
		}
		old.Restart()
		redistest.Eventually(r, time.Minute, "the old master follows", func() bool { return inStep(r, old) }) // when the sentinels have seen it
	}
}

// A failover that loses what the replica had not heard of loses leases, which cost a
// load each, and invalidations, which cost what is left of a TTL. Who cannot have
// that sets WaitReplicas: then the writer is told, and the invalidation is done again
// on the new master within about a second.
func TestChaosAFailoverThatLosesWrites(t *testing.T) {
	t.Parallel()
	const leases, life = 20, 2 * time.Second
	master, replica := redistest.Start(t, quickSync...), redistest.Start(t, quickSync...)
	link := redistest.Proxy(t, master.Addr())
	var dial atomic.Pointer[string] // where clients go
	addr := master.Addr()
	dial.Store(&addr)
	r := newRig(t, cell{redis: "real"}, func() redis.UniversalClient {
		return master.Client(t, func(o *redis.Options) {
			o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, *dial.Load())
			}
		})
	})
	follow(r, replica, link.Addr())
	source, gate := newRows(r, 1), newLatch()
	for key := range int64(leases) {
		source.put(100+key, "v1")
	}
	source.slowly(func(ctx context.Context, key int64) error {
		if key >= 100 && source.loads(key) == 1 {
			return gate.wait(ctx, key)
		}
		return nil
	})
	plainly := func(o *cache.Options) {
		o.Name, o.TTL = "plain", life
		within(time.Minute)(o) // its loads stay at the gate all the while
		calmly(o)
		hard(o)
	}
	safely := func(o *cache.Options) { o.Name, o.TTL, o.Rebuild.WaitReplicas = "safe", time.Hour, 1; hard(o) }
	plain, plainToo := open(r, source.source(), plainly), open(r, source.source(), plainly)
	safe, safeToo := open(r, source.source(), safely), open(r, source.source(), safely)
	plain.comesFrom(r, 1, cache.TierRedis)
	safe.comesFrom(r, 1, cache.TierRedis)
	copied := replica.Client(t)
	r.eventually("the replica has it all", func() bool { return copied.Exists(r.ctx, valueKeyOf("plain", 1), valueKeyOf("safe", 1)).Val() == 2 })

	link.Blackhole(true)
	var held sync.WaitGroup
	for key := range int64(leases) {
		held.Go(func() { plain.gives(r, 100+key, "v1") })
		gate.arrived(r)
	}
	source.put(1, "v2")
	if err := plain.Invalidate(r.ctx, 1); err != nil {
		t.Errorf("without WaitReplicas: %v", err)
	}
	if err := safe.Invalidate(r.ctx, 1); !errors.Is(err, cache.ErrNotInvalidated) {
		t.Errorf("an invalidation that no replica knows of: %v", err)
	}
	master.Kill()
	order(replica, "REPLICAOF", "NO", "ONE")
	addrNow := replica.Addr()
	dial.Store(&addrNow)
	lost := time.Now()

	stale := map[*probe[int64, string]]time.Duration{}
	r.eventually("the new master serves what is new", func() bool {
		news := 0
		for _, c := range []*probe[int64, string]{plain, plainToo, safe, safeToo} {
			began := time.Now()
			got, err := c.Get(r.ctx, 1)
			if err != nil {
				r.Errorf("Get: %v", err)
			}
			if got == "v2" {
				news++
			} else {
				stale[c] = began.Sub(lost)
			}
		}
		return news == 4 && time.Since(lost) > life
	})
	for key := range int64(leases) {
		plainToo.gives(r, 100+key, "v1")
	}
	close(gate.open)
	held.Wait()
	extra := 0
	for key := range int64(leases) {
		extra += source.loads(100+key) - 1
	}
	third := redistest.Start(t, quickSync...)
	follow(r, third, replica.Addr())
	r.eventually("the invalidation is confirmed", func() bool { return safe.Stats().Rebuild.Unconfirmed == 0 })
	safeToo.gives(r, 1, "v2")
	worst, worstSafe := max(stale[plain], stale[plainToo]), max(stale[safe], stale[safeToo])
	t.Logf("an old value was read for %v with a TTL of %v, for %v with a TTL of an hour and WaitReplicas; %d loads more for %d lost leases",
		worst, life, worstSafe, extra, leases)
	if worst > life || extra > leases {
		t.Errorf("an old value was read for %v, %d loads more", worst, extra)
	}
	if worstSafe > 20*time.Second { // it would be the hour
		t.Errorf("with WaitReplicas an old value was read for %v", worstSafe)
	}
}

// quickSync is for servers that get a replica.
var quickSync = []string{"--repl-diskless-sync-delay", "0"}

// follow makes a server a replica and waits until it is one.
func follow(r *rig, replica *redistest.Server, master string) {
	host, port, _ := net.SplitHostPort(master)
	order(replica, "REPLICAOF", host, port)
	r.eventually("the replica follows", func() bool { return inStep(r, replica) })
}

// inStep reports whether a server is a replica that its master knows.
func inStep(r *rig, replica *redistest.Server) bool {
	rdb := redis.NewClient(&redis.Options{Addr: replica.Addr()})
	defer rdb.Close()
	return strings.Contains(rdb.Info(r.ctx, "replication").Val(), "master_link_status:up")
}

// While the slots of a cluster move from node to node, no reader gets an error, and
// nothing is loaded that has not been written.
func TestChaosSlotsMoveUnderReaders(t *testing.T) {
	t.Parallel()
	slots := redistest.Pick(10, 100)
	cluster := redistest.Cluster(t)
	r := newRig(t, cell{redis: "real"}, func() redis.UniversalClient { return cluster.Client(t) })
	source := newRows(r)
	var caches []*probe[int64, string]
	for range 3 {
		caches = append(caches, open(r, source.source(), calmly))
	}
	const keys = 300
	for key := range int64(keys) {
		source.put(key, "v1")
		caches[0].gives(r, key, "v1")
	}
	home := crowd{caches: caches, callers: 8, pause: 5 * time.Millisecond, patience: 20 * time.Second, pick: func() int64 { return rand.Int64N(keys) }}.gather(r)
	for i := range slots {
		key := valueKey(i)
		to := cluster.Nodes[i%3]
		if cluster.Owner(key) == to {
			to = cluster.Nodes[(i+1)%3]
		}
		cluster.Move(key, to)
	}
	got := home()
	t.Logf("%d slots moved; %v; %d loads of %d keys", slots, got, source.all(), keys)
	if bad := got.failed(); len(bad) > 0 {
		t.Errorf("%d Gets failed, as that of %d: %v", len(bad), bad[0].key, bad[0].err)
	}
	if n := source.all(); n > keys {
		t.Errorf("%d loads of %d keys", n, keys)
	}
	for _, c := range caches {
		if s := c.Stats(); s.Rebuild.Unknown+s.Degraded > 0 {
			t.Errorf("%+v", s)
		}
	}
}
