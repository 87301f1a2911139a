package redlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/fence"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
	"github.com/levee-go/levee/lock/redlock"
)

// record is where a Quorum keeps the lock "a" on each server.
var record = keys.Lock("redlock", keys.Mutex, "a")[0]

// A view is several servers and a look at what they know of the lock.
type view struct {
	servers
	nodes []redis.UniversalClient
}

func startView(t *testing.T, n int) view {
	all := startServers(t, n)
	return view{all, all.clients(t)}
}

// owner is who has the lock on one server, "" if nobody.
func (v view) owner(i int) string { return v.nodes[i].HGet(context.Background(), record, "o").Val() }

// free waits until the lock is free on all servers, and stays so.
func (v view) free(t *testing.T) {
	t.Helper()
	since := time.Now()
	redistest.Eventually(t, 20*time.Second, "it is free on all servers", func() bool {
		for i := range v.nodes {
			if v.owner(i) != "" {
				since = time.Now()
			}
		}
		return time.Since(since) > 200*time.Millisecond
	})
}

// onAll waits until the lease stands on every server.
func (v view) onAll(t *testing.T, lease *redlock.Lease) {
	t.Helper()
	redistest.Eventually(t, 20*time.Second, "it is held on all servers", func() bool { return lease.Servers() == len(v.nodes) })
}

// give makes another the holder on server i, in place of whoever has the lock there, with a
// record that is new.
func (v view) give(t *testing.T, i int, owner string) {
	t.Helper()
	soon := time.Now().Add(time.Hour).UnixMicro()
	if _, err := v.nodes[i].TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Del(t.Context(), record)
		p.HSet(t.Context(), record, "o", owner, "x", soon/1000, "l", 7_200_000, "f", soon, "b", soon, "m", "")
		return p.PExpire(t.Context(), record, 2*time.Hour).Err()
	}); err != nil {
		t.Fatal(err)
	}
}

// Servers that keep nothing on disk restart one after another, each of them twice, and the
// holder keeps the lock. Catches a lease that loses a server for good with each restart: the
// second one ended it. One server's clock was an hour ahead when it made the lease's fence,
// and is not after its restart: the next fence is larger only if the servers that were taken
// again had been given the lease's.
func TestALivingHolderKeepsTheLockWhileServersForgetOneByOne(t *testing.T) {
	t.Parallel()
	all := startView(t, 3)
	q, other := all.quorum(t, lock.Options{}), all.quorum(t, lock.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // for what would wait without end
	defer cancel()
	ahead := time.Now().Add(time.Hour).UnixMicro()
	all.nodes[0].HSet(ctx, record, "f", ahead, "b", 1, "o", "")
	lease := take(t, q)
	for lease.Fence() <= ahead { // a busy machine takes longer than a quorum waits
		unlock(t, lease)
		lease = take(t, q)
	}
	all.onAll(t, lease)
	for round := range 2 {
		for i := range all.servers {
			all.servers[i].Kill()
			all.servers[i].Restart()
			redistest.Eventually(t, 20*time.Second, "the server knows the lock again", func() bool { return all.owner(i) != "" && lease.Servers() == 3 })
			if err := lease.Err(); err != nil {
				t.Fatalf("round %d, server %d: %v", round, i, err)
			}
			if _, err := other.TryLock(ctx, "a"); err == nil {
				t.Fatalf("round %d, server %d: two holders", round, i)
			}
			all.onAll(t, lease) // the other may have been quicker on the one that forgot
		}
	}
	if err := lease.Unlock(ctx); err != nil && !errors.Is(err, lock.ErrUnavailable) {
		t.Error(err)
	}
	all.free(t)
	next := take(t, other)
	if next.Fence() <= lease.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
	}
	unlock(t, next)
}

// A server that was down when the lock was taken counts when it is back: here the lease
// then outlives the end of another. Catches a lease that stands on a bare majority for life.
func TestAServerThatComesBackCounts(t *testing.T) {
	t.Parallel()
	all := startView(t, 3)
	q := all.quorum(t, lock.Options{Lease: 6 * time.Second}) // see TestAQuorumNeedsAMajority
	all.servers[0].Kill()
	lease := take(t, q)
	all.servers[0].Restart()
	all.onAll(t, lease)
	all.servers[1].Kill()
	redistest.Eventually(t, 20*time.Second, "the lease on the one that is down has ended", func() bool { return lease.Servers() == 2 })
	if err := lease.Err(); err != nil {
		t.Error(err)
	}
	unlock(t, lease)
}

// Somebody else has taken the lock on the server that forgot it: it stays theirs, and when
// they have given it back the lease stands on that server again.
func TestAServerThatAnotherHasTakenStaysTheirs(t *testing.T) {
	t.Parallel()
	all := startView(t, 3)
	q := all.quorum(t, lock.Options{Lease: 3 * time.Second})
	ctx := t.Context()
	lease := take(t, q)
	all.onAll(t, lease)
	all.give(t, 0, "somebody else")
	redistest.Eventually(t, 20*time.Second, "the lease stands on two", func() bool { return lease.Servers() == 2 })
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if owner := all.owner(0); owner != "somebody else" {
			t.Fatalf("%q has it", owner)
		}
	}
	if err := lease.Err(); err != nil || lease.Servers() != 2 {
		t.Errorf("%v, on %d servers", err, lease.Servers())
	}
	all.nodes[0].HSet(ctx, record, "o", "")
	all.onAll(t, lease)
	unlock(t, lease)
	all.free(t)
}

// A server forgets and another takes the lock with it, works, and gives it back, before the
// holder hears of it: so the holder has lost the lock, although a majority grants it by then.
// Catches a lease that joins a server first and hears of the other one afterwards.
func TestALeaseThatLostItsMajorityUnheardStaysLost(t *testing.T) {
	t.Parallel()
	all := startView(t, 3)
	q := all.quorum(t, lock.Options{Lease: time.Minute}) // is not renewed here
	all.give(t, 2, "another")
	lease := take(t, q)
	all.give(t, 1, "another") // who has the majority
	for _, i := range []int{1, 2} {
		all.nodes[i].HSet(t.Context(), record, "o", "")
	}
	redistest.Eventually(t, 20*time.Second, "the server that is free counts, or it is lost", func() bool { return lease.Servers() == 3 || lease.Err() != nil })
	if err := lease.Check(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Check: %v", err)
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	all.free(t)
}

// A lease that is given back or lost while a server is taken again leaves nothing there.
// Catches a lock on one server that nobody gives back, which keeps others out for its lease.
func TestALeaseThatEndsWhileAServerIsTakenAgainLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, view, *redlock.Quorum, *redlock.Lease){
		"unlocked": func(t *testing.T, _ view, _ *redlock.Quorum, lease *redlock.Lease) { unlock(t, lease) },
		"closed":   func(_ *testing.T, _ view, q *redlock.Quorum, _ *redlock.Lease) { _ = q.Close() },
		"lost": func(t *testing.T, all view, _ *redlock.Quorum, lease *redlock.Lease) {
			redistest.Eventually(t, 20*time.Second, "it is lost", func() bool {
				for _, node := range all.nodes[1:] {
					node.Del(t.Context(), record)
				}
				return lease.Check(t.Context()) != nil && lease.Err() != nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := startView(t, 3)
			links, nodes := all.behindProxies(t)
			for i := range 10 {
				q := open(t, nodes, lock.Options{Lease: time.Minute})
				lease := take(t, q)
				all.onAll(t, lease)
				links[0].Delay(time.Duration(3*i) * time.Millisecond) // so that the end comes before, between and after the steps
				all.nodes[0].Del(t.Context(), record)
				_ = lease.Check(t.Context()) // which tells
				time.Sleep(time.Duration(4*(9-i)) * time.Millisecond)
				end(t, all, q, lease)
				links[0].Delay(0)
				all.free(t)
				_ = q.Close()
			}
		})
	}
}

// A server forgets between the two phases. Catches a lease that goes on giving its fence to a
// server that does not know it, until the next renewal.
func TestAServerThatForgetsBeforeItKnowsTheFenceIsTakenAgain(t *testing.T) {
	all := startView(t, 3)
	var forgets atomic.Int32 // how often yet
	raise := fence.Raise
	fence.Raise = func(ctx context.Context, lease any, to int64) error {
		if forgets.Add(-1) >= 0 {
			all.nodes[0].Del(ctx, record)
		}
		return raise(ctx, lease, to)
	}
	t.Cleanup(func() { fence.Raise = raise }) // after the quorum's end
	q := all.quorum(t, lock.Options{Lease: time.Hour})
	unlock(t, take(t, q)) // loads the scripts
	all.free(t)
	forgets.Store(5)
	lease := take(t, q)
	all.onAll(t, lease)
	unlock(t, lease)
}

// MaxHold bounds a lease also when servers are taken again, whose leases begin later.
func TestMaxHoldEndsALeaseWhoseServersWereTakenAgain(t *testing.T) {
	t.Parallel()
	all := startView(t, 3)
	const hold = 3 * time.Second
	q := all.quorum(t, lock.Options{Lease: 500 * time.Millisecond, MaxHold: hold})
	begin := time.Now()
	lease := take(t, q)
	for i := 0; lease.Err() == nil && time.Since(begin) < 10*hold; i++ {
		all.nodes[i%3].Del(t.Context(), record)
		redistest.Eventually(t, 20*time.Second, "the server is taken again, or it is over", func() bool {
			return lease.Err() != nil || all.owner(i%3) != "" && lease.Servers() == 3
		})
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Error(err)
	}
	all.free(t)
}
