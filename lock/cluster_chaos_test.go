package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A cluster of three masters and three replicas, in which slots move and masters die
// while all kinds of locks are taken a hundred thousand times: no script meets keys of
// two slots, nobody is stuck, and fences grow. What a master had not replicated when
// it died may be lost, which is told.
func TestChaosCluster(t *testing.T) {
	more := redistest.Quota(t, 100_000)
	cluster := redistest.Cluster(t)
	cluster.Replicate()
	ctx, cancel := context.WithCancel(t.Context())
	c := &clusterCrowd{t: t, ctx: ctx}
	for range 3 {
		c.lockers = append(c.lockers, open(t, cluster.Client(t), lock.Options{Lease: 5 * time.Second}))
	}
	for i := range c.locks {
		c.locks[i].name = fmt.Sprint("{", i, "}") // the braces must not choose the slot
	}
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	for i := range 24 {
		all.Go(func() {
			for ctx.Err() == nil && more() {
				c.done.Add(1)
				c.operate(c.lockers[i%len(c.lockers)])
			}
		})
	}
	finished := make(chan struct{})
	go func() { all.Wait(); close(finished) }()
	moves, failovers := 0, 0
	for busy := true; busy || failovers == 0; {
		record := keys.Lock("", keys.Mutex, c.locks[rand.IntN(len(c.locks))].name)[0]
		if moves%25 == 24 {
			cluster.FailOver(record)
			failovers++
		}
		masters := cluster.Masters()
		cluster.Move(record, masters[rand.IntN(len(masters))])
		moves++
		select {
		case <-finished:
			busy = false
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Logf("%d operations, %d slots moved, %d masters killed: %d calls found no server, %d leases were lost, the longest wait was %v",
		c.granted.Load(), moves, failovers, c.failed.Load(), c.lost.Load(), time.Duration(c.longest.Load()))
	if c.granted.Load() == 0 {
		t.Error("nothing was locked")
	}
}

type clusterCrowd struct {
	t                           *testing.T
	ctx                         context.Context
	lockers                     []*lock.Locker
	locks                       [60]clusterLock
	done, granted, failed, lost atomic.Int64
	longest                     atomic.Int64
}

type clusterLock struct {
	name   string
	inside atomic.Int32
	fence  atomic.Int64
}

// operate takes one lock, of any kind.
func (c *clusterCrowd) operate(l *lock.Locker) {
	ctx, cancel := context.WithTimeout(c.ctx, 2*time.Minute)
	defer cancel()
	k := &c.locks[rand.IntN(len(c.locks))]
	begin := time.Now()
	var lease *lock.Lease
	var err error
	switch rand.IntN(8) {
	case 0:
		lease, err = l.RW(k.name).RLock(ctx)
	case 1:
		lease, err = l.Semaphore(k.name, 3).Acquire(ctx)
	case 2:
		lease, err = l.LockAll(ctx, "first "+k.name, "second "+k.name)
	case 3:
		_, err = l.Once(ctx, fmt.Sprint(k.name, c.done.Load()/5), time.Second, func(context.Context) error { return nil })
	default:
		lease, err = l.Lock(ctx, k.name)
		if err == nil {
			c.exclusive(k, lease)
		}
	}
	for took := int64(time.Since(begin)); ; {
		if longest := c.longest.Load(); took <= longest || c.longest.CompareAndSwap(longest, took) {
			break
		}
	}
	if err == nil && lease != nil {
		err = lease.Unlock(ctx)
	}
	c.count(err)
}

// exclusive is what one who has a lock to himself sees.
func (c *clusterCrowd) exclusive(k *clusterLock, lease *lock.Lease) {
	if k.inside.Add(1) != 1 && lease.Err() == nil {
		c.t.Errorf("%s: two holders", k.name)
	}
	if before := k.fence.Swap(lease.Fence()); before >= lease.Fence() {
		c.t.Errorf("%s: fence %d after %d", k.name, lease.Fence(), before)
	}
	k.inside.Add(-1)
}

func (c *clusterCrowd) count(err error) {
	switch {
	case c.ctx.Err() != nil: // the test has failed
	case err == nil:
		c.granted.Add(1)
	case strings.Contains(err.Error(), "CROSSSLOT") || strings.Contains(err.Error(), "same slot"):
		c.t.Error(err)
	case errors.Is(err, lock.ErrLost):
		c.lost.Add(1)
	case errors.Is(err, lock.ErrUnavailable): // while a slot moves or a master is dead
		c.failed.Add(1)
	default:
		c.t.Errorf("stuck: %v", err)
	}
}
