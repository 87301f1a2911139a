package lock_test

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
	"github.com/levee-go/levee/lock"
)

func TestEverythingWorksOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	ls := []*lock.Locker{open(t, cluster.Client(t), lock.Options{}), open(t, cluster.Client(t), lock.Options{})}
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
				err := ls[i%2].Do(ctx, fmt.Sprint("{", n, "}"), func(_ context.Context, s *lock.Lease) error {
					if inside[n].Add(1) != 1 || s.Fence() <= last[n] {
						t.Errorf("lock %d: %d inside, fence %d after %d", n, inside[n].Load(), s.Fence(), last[n])
					}
					last[n] = s.Fence()
					inside[n].Add(-1)
					return nil
				})
				if err != nil && !errors.Is(err, lock.ErrUnavailable) { // while a slot moves
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
	renewed := ls[0].Stats().Renewals
	many := ls[0].With(lock.Options{Lease: 3 * time.Second}) // renewed in one pipeline for each node
	var leases []*lock.Lease
	for i := range 20 {
		leases = append(leases, must(t)(many.Lock(ctx, fmt.Sprint("many", i))))
	}
	redistest.Eventually(t, 20*time.Second, "they are renewed", func() bool { return int(ls[0].Stats().Renewals-renewed) >= 2*len(leases) })
	unlock(t, leases...)
	_, err := ls[0].With(lock.Options{Replicas: 1, ReplicaTimeout: 20 * time.Millisecond}).Lock(ctx, "r") // there are none
	if !errors.Is(err, lock.ErrNotReplicated) {
		t.Error(err)
	}
	unlock(t, must(t)(ls[1].TryLock(ctx, "r")))
}

func TestALockIsConfirmedByReplicasInOneRoundTrip(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	host, port := "127.0.0.1", s.Addr()[len("127.0.0.1:"):]
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	ctx := t.Context()
	ctl := s.Client(t, func(o *redis.Options) { o.PoolSize = 1 }) // WAIT counts what its connection wrote
	redistest.Eventually(t, 20*time.Second, "the replica follows", func() bool {
		ctl.Set(ctx, "x", "y", 0)
		return ctl.Wait(ctx, 1, 50*time.Millisecond).Val() == 1
	})
	l := open(t, s.Client(t), lock.Options{Replicas: 1, ReplicaTimeout: time.Second, Lease: 4 * time.Second})
	redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
	unlock(t, must(t)(l.Lock(ctx, "a")))
	waits := s.Calls("wait")
	lease := must(t)(l.Lock(ctx, "a"))
	if got := s.Calls("wait") - waits; got != 1 {
		t.Errorf("%d WAIT", got)
	}
	if got := replica.Client(t).HGet(ctx, keys.Lock("", keys.Mutex, "a")[0], "f").Val(); got != fmt.Sprint(lease.Fence()) {
		t.Errorf("the replica has the fence %s", got)
	}
	redistest.Eventually(t, 20*time.Second, "it is renewed, and that confirmed", func() bool { return l.Stats().Renewals > 0 })
	if err := lease.Err(); err != nil {
		t.Error(err)
	}
	waits = s.Calls("wait") // only to look needs no replica
	for range 20 {
		if err := lease.Check(ctx); err != nil {
			t.Error(err)
		}
	}
	if got := s.Calls("wait") - waits; got >= 20 { // a renewal may come in between
		t.Errorf("%d WAIT for 20 looks", got)
	}
	replica.Stop()
	if _, err := l.Lock(ctx, "b"); !errors.Is(err, lock.ErrNotReplicated) {
		t.Errorf("got %v", err)
	}
	if info, _ := l.Inspect(ctx, "b"); info.Held {
		t.Error("what was not confirmed is still held")
	}
	select { // renewals that are not confirmed do not count
	case <-lease.Context().Done():
	case <-time.After(30 * time.Second):
		t.Error("the lease goes on without its replica")
	}
	replica.Cont()
	_ = lease.Unlock(ctx)
}

// The master of a lock is killed and does not come back. Catches a Locker that gives no
// lock until go-redis looks at the cluster again, a minute later.
func TestALockIsGivenAgainAsSoonAsTheClusterHasFailedOver(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	cluster.Replicate()
	l := open(t, cluster.Client(t), lock.Options{})
	unlock(t, must(t)(l.Lock(t.Context(), "a")))
	cluster.Lose(keys.Lock("", keys.Mutex, "a")[0])
	began := time.Now()
	redistest.Eventually(t, 10*time.Second, "the lock is given", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		lease, err := l.Lock(ctx, "a")
		return err == nil && lease.Unlock(ctx) == nil
	})
	t.Logf("%v after the failover", time.Since(began))
}
