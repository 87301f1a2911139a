package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

func TestEverythingWorksOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	ls := []*Locker{open(t, cluster.Client(t), Options{}), open(t, cluster.Client(t), Options{})}
	ctx := t.Context()
	var inside [6]atomic.Int32
	last := [6]int64{}
	var all sync.WaitGroup
	moved := make(chan struct{})
	for i := range 12 {
		all.Go(func() {
			for round := range redistest.Pick(30, 2000) {
				if i == 0 && round == 10 {
					close(moved)
				}
				n := (i + round) % len(inside)
				err := ls[i%2].Do(ctx, fmt.Sprint("{", n, "}"), func(_ context.Context, s *Lease) error {
					if inside[n].Add(1) != 1 || s.Fence() <= last[n] {
						t.Errorf("lock %d: %d inside, fence %d after %d", n, inside[n].Load(), s.Fence(), last[n])
					}
					last[n] = s.Fence()
					inside[n].Add(-1)
					return nil
				})
				if err != nil && !errors.Is(err, ErrUnavailable) { // while a slot moves
					t.Error(err)
				}
			}
		})
	}
	<-moved
	record := keys.Lock("", keys.Mutex, "{0}")[0]
	for _, node := range cluster.Nodes {
		if node != cluster.Owner(record) {
			cluster.Move(record, node)
			break
		}
	}
	all.Wait()
	unlock(t, must(t)(ls[0].LockAll(ctx, "a", "b", "c", "d")))
	unlock(t, must(t)(ls[0].RW("a").RLock(ctx)), must(t)(ls[0].Semaphore("a", 2).Acquire(ctx)))
	if ran, err := ls[0].Once(ctx, "a", time.Minute, func(context.Context) error { return nil }); !ran || err != nil {
		t.Error(ran, err)
	}
	many := ls[0].With(Options{Lease: 500 * time.Millisecond}) // renewed in one pipeline for each node
	var leases []*Lease
	for i := range 20 {
		leases = append(leases, must(t)(many.Lock(ctx, fmt.Sprint("many", i))))
	}
	time.Sleep(time.Second)
	unlock(t, leases...)
	_, err := ls[0].With(Options{Replicas: 1, ReplicaTimeout: 20 * time.Millisecond}).Lock(ctx, "r") // there are none
	if !errors.Is(err, ErrNotReplicated) {
		t.Error(err)
	}
	unlock(t, must(t)(ls[1].TryLock(ctx, "r")))
}

func TestALockIsConfirmedByReplicasInOneRoundTrip(t *testing.T) {
	s := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	host, port := "127.0.0.1", s.Addr()[len("127.0.0.1:"):]
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	ctx := t.Context()
	ctl := s.Client(t, func(o *redis.Options) { o.PoolSize = 1 }) // WAIT counts what its connection wrote
	redistest.Eventually(t, 20*time.Second, "the replica follows", func() bool {
		ctl.Set(ctx, "x", "y", 0)
		return ctl.Wait(ctx, 1, 50*time.Millisecond).Val() == 1
	})
	l := open(t, s.Client(t), Options{Replicas: 1, ReplicaTimeout: 300 * time.Millisecond, Lease: 1500 * time.Millisecond})
	redistest.Eventually(t, 5*time.Second, "the subscription stands", l.c.push)
	unlock(t, must(t)(l.Lock(ctx, "a")))
	waits := s.Calls("wait")
	lease := must(t)(l.Lock(ctx, "a"))
	if got := s.Calls("wait") - waits; got != 1 {
		t.Errorf("%d WAIT", got)
	}
	if got := replica.Client(t).HGet(ctx, keys.Lock("", keys.Mutex, "a")[0], "f").Val(); got != fmt.Sprint(lease.Fence()) {
		t.Errorf("the replica has the fence %s", got)
	}
	time.Sleep(1600 * time.Millisecond) // it is renewed, and that confirmed
	if err := lease.Err(); err != nil {
		t.Error(err)
	}
	replica.Stop()
	if _, err := l.Lock(ctx, "b"); !errors.Is(err, ErrNotReplicated) {
		t.Errorf("got %v", err)
	}
	if info, _ := l.Inspect(ctx, "b"); info.Held {
		t.Error("what was not confirmed is still held")
	}
	select { // renewals that are not confirmed do not count
	case <-lease.Context().Done():
	case <-time.After(3 * time.Second):
		t.Error("the lease goes on without its replica")
	}
	replica.Cont()
	_ = lease.Unlock(ctx)
}

// Locks that a replica has confirmed survive the failover, the others may not;
// fences grow across it, and everybody who waits comes through.
func TestChaosSentinelFailover(t *testing.T) {
	t.Parallel()
	set := redistest.Sentinel(t)
	client := func() *redis.Client {
		return set.Client(t, func(o *redis.FailoverOptions) { o.MaxRetries = 2; o.DialTimeout = 500 * time.Millisecond })
	}
	ctx := t.Context()
	opts := Options{Replicas: 1, ReplicaTimeout: 500 * time.Millisecond, Lease: 20 * time.Second}
	a, b := open(t, client(), opts), open(t, client(), opts)
	var held []*Lease
	for i := range 20 {
		held = append(held, must(t)(a.Lock(ctx, fmt.Sprint("held", i))))
	}
	// From here on no confirmation can come: one of the two servers is gone.
	c := b.With(Options{Lease: 20 * time.Second})
	waiter := make(chan error, 1)
	var granted time.Time
	go func() {
		lease, err := c.Lock(context.Background(), "held0")
		granted = time.Now()
		if err == nil && lease.Fence() <= held[0].Fence() {
			err = fmt.Errorf("fence %d after %d", lease.Fence(), held[0].Fence())
		}
		if err == nil {
			err = lease.Unlock(context.Background())
		}
		waiter <- err
	}()
	redistest.Eventually(t, 5*time.Second, "it waits", func() bool {
		info, _ := b.Inspect(ctx, "held0")
		return info.Waiting == 1
	})
	old := set.KillMaster()
	begin := time.Now()
	set.Promoted(old)
	t.Logf("promoted after %v", time.Since(begin))
	lost := 0
	for _, lease := range held {
		var err error
		redistest.Eventually(t, 10*time.Second, "the new master answers", func() bool {
			err = lease.Check(ctx)
			return err == nil || errors.Is(err, ErrLost)
		})
		if err != nil {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d confirmed locks were lost", lost, len(held))
	}
	freed := time.Now()
	for _, lease := range held {
		if err := lease.Unlock(ctx); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	}
	select {
	case err := <-waiter:
		if err != nil {
			t.Error(err)
		}
		t.Logf("the waiter had it %v after it was free", granted.Sub(freed))
	case <-time.After(10 * time.Second):
		t.Error("the waiter is stuck")
	}
}
