package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// Locks that a replica has confirmed survive a failover, the others may not; fences
// grow across it, and everybody who waits comes through. The control is the last
// failover, in which a replica that had been cut off takes over: it knows nothing of
// what it did not confirm.
func TestChaosSentinelFailovers(t *testing.T) {
	rounds := redistest.Rounds(t, 50)
	f := startFailovers(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	busy := crowd{pause: 5 * time.Millisecond}
	for range 3 {
		busy.join(ctx, t, &all, open(t, f.client(), confirmed), 8)
	}
	for range rounds {
		f.round(ctx, t, &busy)
	}
	cancel()
	all.Wait()
	t.Logf("%d failovers, 20 confirmed locks each: %d lost; they took %v to %v, then a waiter had its lock after %v and the crowd went on after %v, at the worst; "+
		"%d acquisitions with growing fences, %d calls failed; %d locks were given back in the background",
		f.rounds, f.lost, f.fastest, f.slowest, f.waiter, f.crowd, busy.served, busy.failures, f.later)
	t.Logf("the control: %d of 20 that were not confirmed lost", f.control(t))
}

var confirmed = lock.Options{Replicas: 1, ReplicaTimeout: 500 * time.Millisecond, Lease: 30 * time.Second}

// failovers are what happened in those of one test.
type failovers struct {
	t                *testing.T
	set              *redistest.SentinelServers
	a, b             *lock.Locker
	alone            *lock.Locker // while there is one server no confirmation can come
	fence            int64        // the last one of "held0"
	rounds, lost     int
	later            int // unlocked in the background
	fastest, slowest time.Duration
	waiter, crowd    time.Duration // until they went on, at the worst
}

func startFailovers(t *testing.T) *failovers {
	f := &failovers{t: t, set: redistest.Sentinel(t), fastest: time.Hour}
	for _, sentinel := range f.set.Sentinels { // the next failover may begin after twice this time
		if err := sentinel.Client(t).Do(t.Context(), "SENTINEL", "SET", "levee", "failover-timeout", 1500).Err(); err != nil {
			t.Fatal(err)
		}
	}
	f.a, f.b = open(t, f.client(), confirmed), open(t, f.client(), confirmed)
	f.alone = f.b.With(lock.Options{Lease: confirmed.Lease})
	return f
}

func (f *failovers) client() *redis.Client {
	return f.set.Client(f.t, func(o *redis.FailoverOptions) { o.MaxRetries = 2; o.DialTimeout = 500 * time.Millisecond })
}

// round is one failover.
func (f *failovers) round(ctx context.Context, t *testing.T, busy *crowd) {
	t.Helper()
	var held []*lock.Lease
	for i := range 20 {
		held = append(held, must(t)(reach(ctx, f.a, fmt.Sprint("held", i))))
	}
	granted := make(chan *lock.Lease, 1)
	go func() {
		lease, err := reach(context.Background(), f.alone, "held0")
		if err != nil {
			t.Error(err)
		}
		granted <- lease
	}()
	waiting(t, f.b, keys.Mutex, "held0", 1)
	begin := time.Now()
	old := f.set.KillMaster()
	now := f.set.Promoted(old)
	took := time.Since(begin)
	f.fastest, f.slowest = min(f.fastest, took), max(f.slowest, took)
	for i, lease := range held {
		if err := survivor(t, lease); err != nil {
			f.lost++
			t.Errorf("round %d: confirmed lock %d: %v", f.rounds, i, err)
		}
	}
	freed := time.Now()
	f.giveBack(held...)
	select {
	case next := <-granted:
		if next.Fence() <= held[0].Fence() || held[0].Fence() <= f.fence {
			t.Errorf("round %d: fences %d, %d, %d", f.rounds, f.fence, held[0].Fence(), next.Fence())
		}
		f.fence, f.waiter = next.Fence(), max(f.waiter, time.Since(freed))
		f.giveBack(next)
	case <-time.After(20 * time.Second):
		t.Fatal("the waiter is stuck")
	}
	f.rejoin(old, now)
	back := time.Now() // from here on its locks can be confirmed
	busy.progress(t, 1)
	f.crowd = max(f.crowd, time.Since(back))
	busy.progress(t, 20)
	f.known()
	f.rounds++
}

// reach takes a lock as soon as there is a server to ask. For up to a second after the
// failover go-redis gives a caller who needs a new connection the error of the last one
// that it could not open, without trying, when as many as fit in its pool have failed.
func reach(ctx context.Context, l *lock.Locker, name string) (*lock.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return untilAvailable(func() (*lock.Lease, error) { return l.Lock(ctx, name) })
}

// giveBack unlocks held0, held1 and so on. Unlock may be refused a connection like Lock, see
// reach: then it says so, and the lock is free soon, long before its lease would end.
func (f *failovers) giveBack(leases ...*lock.Lease) {
	f.t.Helper()
	for i, lease := range leases {
		err := lease.Unlock(context.Background())
		if !errors.Is(err, lock.ErrUnavailable) {
			if err != nil {
				f.t.Error(err)
			}
			continue
		}
		f.later++
		redistest.Eventually(f.t, 10*time.Second, "a lock is given back in the background", func() bool {
			info, err := f.b.Inspect(f.t.Context(), fmt.Sprint("held", i))
			return err == nil && (!info.Held || info.Fence > lease.Fence())
		})
	}
}

// survivor tells whether a lease stands, as soon as there is a server to ask.
func survivor(t *testing.T, lease *lock.Lease) (err error) {
	t.Helper()
	redistest.Eventually(t, 20*time.Second, "the new master answers", func() bool {
		err = lease.Check(t.Context())
		return err == nil || errors.Is(err, lock.ErrLost)
	})
	return err
}

// rejoin brings a server back as a replica, without waiting for the sentinels to
// notice that it should be one.
func (f *failovers) rejoin(old, master *redistest.Server) {
	f.t.Helper()
	old.Restart()
	rdb := old.Client(f.t)
	defer rdb.Close()
	port := master.Addr()[strings.LastIndexByte(master.Addr(), ':')+1:]
	rdb.Do(f.t.Context(), "REPLICAOF", "127.0.0.1", port)
	redistest.Eventually(f.t, 30*time.Second, "the replica follows", func() bool {
		return strings.Contains(rdb.Info(f.t.Context(), "replication").Val(), "master_link_status:up")
	})
	of := master.Client(f.t)
	defer of.Close()
	one := of.Conn() // WAIT counts those who know what this connection has written
	defer one.Close()
	redistest.Eventually(f.t, 30*time.Second, "the replica confirms", func() bool {
		return one.Set(f.t.Context(), "rejoined", 1, 0).Err() == nil && one.Do(f.t.Context(), "WAIT", 1, 100).Val() == int64(1)
	})
}

// known waits until the sentinels know of the replica, which is the next master.
func (f *failovers) known() {
	f.t.Helper()
	for _, sentinel := range f.set.Sentinels {
		rdb := sentinel.Client(f.t)
		redistest.Eventually(f.t, 30*time.Second, "the sentinels know the replica", func() bool {
			replicas, _ := rdb.Do(f.t.Context(), "SENTINEL", "REPLICAS", "levee").Slice()
			if len(replicas) != 1 {
				return false
			}
			view, _ := replicas[0].(map[any]any)
			return view["flags"] == "slave"
		})
		_ = rdb.Close()
	}
}

// control returns how many locks are lost that nobody has confirmed, when the
// replica's link is broken before they are taken and the master dies after that.
func (f *failovers) control(t *testing.T) (lost int) {
	t.Helper()
	master := f.set.Master()
	replica := f.set.Data[0]
	if replica == master {
		replica = f.set.Data[1]
	}
	unlock(t, must(t)(f.alone.Lock(t.Context(), "control")))
	replica.Stop() // it cannot come back in time
	if err := master.Client(t).ClientKillByFilter(t.Context(), "TYPE", "replica").Err(); err != nil {
		t.Fatal(err)
	}
	var loose []*lock.Lease
	for i := range 20 {
		loose = append(loose, must(t)(f.alone.Lock(t.Context(), fmt.Sprint("loose", i))))
	}
	f.set.KillMaster()
	replica.Cont()
	f.set.Promoted(master)
	for _, lease := range loose {
		if err := survivor(t, lease); err != nil {
			lost++
		}
		_ = lease.Unlock(t.Context())
	}
	if lost == 0 {
		t.Error("the control has lost none: the test has no teeth")
	}
	return lost
}
