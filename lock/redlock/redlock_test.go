package redlock_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/fence"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
	"github.com/levee-go/levee/lock/redlock"
)

// Any two of five servers may hang, die and forget: there is one holder, and
// fences grow. A quorum that took the highest fence of its own majority without
// putting it on the others would repeat one here.
func TestAQuorumSurvivesAnyMinority(t *testing.T) {
	t.Parallel()
	nodes := startServers(t, 5)
	qs := []*redlock.Quorum{nodes.quorum(t, lock.Options{}), nodes.quorum(t, lock.Options{}), nodes.quorum(t, lock.Options{})}
	var left atomic.Int32
	left.Store(int32(redistest.Pick(300, 9000)))
	total := contend(t, qs, func() bool { return left.Add(-1) >= 0 }, func(i int) {
		one, two := nodes[i%5], nodes[(i+2)%5]
		one.Stop()
		two.Kill()
		time.Sleep(50 * time.Millisecond)
		one.Cont()
		two.Restart()
	}, nil)
	t.Logf("%d acquisitions", total)
}

// contend has all take one lock for as long as more says so, and sees to it that there
// is one holder and that fences grow. Meanwhile strike breaks something, time and again.
// Leases that were lost by it are counted in lost; without it there must be none.
//
// What one server forgot must not meet what another forgets before the leases in
// between have been given back: two at a time are a minority, four are not. So between
// two strikes everybody gets the lock twice.
func contend(t *testing.T, qs []*redlock.Quorum, more func() bool, strike func(i int), lost *atomic.Int32) (total int64) {
	t.Helper()
	var inside atomic.Int32
	var last int64
	rounds := make([]atomic.Int32, len(qs))
	stop := make(chan struct{})
	var all, chaos sync.WaitGroup
	settled := func() {
		for i := range rounds {
			for begin := rounds[i].Load(); rounds[i].Load() < begin+2; {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		}
	}
	chaos.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(30 * time.Millisecond):
			}
			strike(i)
			settled()
		}
	})
	for i, q := range qs {
		all.Go(func() {
			defer rounds[i].Store(1 << 30) // it is done
			for more() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				lease, err := q.Lock(ctx, "a")
				for errors.Is(err, lock.ErrUnavailable) { // while the servers change places
					lease, err = q.Lock(ctx, "a")
				}
				cancel()
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two holders")
				}
				if lease.Fence() <= last {
					t.Errorf("fence %d after %d", lease.Fence(), last)
				}
				last = lease.Fence()
				total++
				inside.Add(-1)
				err = lease.Unlock(t.Context())
				if lost != nil && errors.Is(err, lock.ErrLost) {
					lost.Add(1)
				} else if err != nil && !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("Unlock: %v", err)
				}
				rounds[i].Add(1)
			}
		})
	}
	all.Wait()
	close(stop)
	chaos.Wait()
	return total
}

func TestAQuorumNeedsAMajority(t *testing.T) {
	t.Parallel()
	nodes := startServers(t, 3)
	// On a busy machine two seconds pass without a renewal that reaches both servers left.
	q := nodes.quorum(t, lock.Options{Lease: 6 * time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for what would wait without end
	defer cancel()
	lease := take(t, q)
	if _, err := q.TryLock(ctx, "a"); !errors.Is(err, lock.ErrNotAcquired) {
		t.Error(err)
	}
	if _, err := q.Lock(lease.Context(), "a"); !errors.Is(err, lock.ErrDeadlock) {
		t.Error(err)
	}
	// On a busy machine the third may have been too slow for an answer that counts. Without one of
	// two the lease would be lost.
	redistest.Eventually(t, 20*time.Second, "it is held on all three", func() bool { return lease.Servers() == 3 })
	nodes[0].Kill()
	before := q.Renewals()
	redistest.Eventually(t, 20*time.Second, "it is renewed by the two others", func() bool { return q.Renewals() >= before+2 })
	redistest.Eventually(t, 20*time.Second, "the two others say that it stands", func() bool { return lease.Check(ctx) == nil })
	if err := lease.Err(); err != nil {
		t.Error(err)
	}
	nodes[1].Stop()
	select {
	case <-lease.Context().Done():
	case <-time.After(20 * time.Second):
		t.Error("a minority renews the lease")
	}
	begin := time.Now()
	if _, err := q.Lock(ctx, "b"); !errors.Is(err, lock.ErrUnavailable) {
		t.Error(err)
	}
	if took := time.Since(begin); took > 20*time.Second { // until its ctx ends it would be a minute
		t.Errorf("it took %v", took)
	}
	nodes[1].Cont()
	if err := lease.Unlock(ctx); !errors.Is(err, lock.ErrLost) {
		t.Error(err)
	}
	for _, o := range []lock.Options{{Replicas: 1}, {StrictFIFO: true}, {Fsync: true}, {Lease: 1}} {
		if _, err := redlock.New(nodes.clients(t), o); !errors.Is(err, lock.ErrConfig) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := redlock.New(nil, lock.Options{}); !errors.Is(err, lock.ErrConfig) {
		t.Error(err)
	}
	if _, err := redlock.New(append(nodes.clients(t)[:2], nil), lock.Options{}); !errors.Is(err, lock.ErrConfig) || !strings.Contains(err.Error(), "nodes[2]") {
		t.Errorf("a node without a Redis: %v", err) // its locks would be in this process
	}
	long := strings.Repeat("a", 121)
	_ = nodes.quorum(t, lock.Options{Prefix: long[1:]})
	if _, err := redlock.New(nodes.clients(t), lock.Options{Prefix: long}); !errors.Is(err, lock.ErrConfig) || !strings.Contains(err.Error(), "at most 120 bytes") || !strings.Contains(err.Error(), strconv.Quote(long)) {
		t.Error(err)
	}
}

// One server's clock is an hour ahead. When it is gone the next fence must still be
// larger, which it is only if the first one was put on the others too.
func TestAQuorumsFenceIsOnAMajority(t *testing.T) {
	t.Parallel()
	nodes := startServers(t, 3)
	q := nodes.quorum(t, lock.Options{})
	ctx := t.Context()
	ahead := time.Now().Add(time.Hour).UnixMicro()
	nodes[0].Client(t).HSet(ctx, record, "f", ahead, "b", 1, "o", "")
	first := take(t, q)
	for begin := time.Now(); first.Fence() <= ahead; first = take(t, q) { // a busy machine takes longer than a quorum waits
		if unlock(t, first); time.Since(begin) > 20*time.Second {
			t.Fatalf("fence %d after %d", first.Fence(), ahead)
		}
	}
	unlock(t, first)
	nodes[0].Kill()
	next := take(t, q)
	if next.Fence() <= first.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), first.Fence())
	}
	unlock(t, next)
}

// A grant whose fence a majority did not take must not stand: the next one could be
// made by those who did not, with the same fence. Here two of three lose their answer.
func TestAQuorumsLockNeedsItsFenceOnAMajority(t *testing.T) {
	var lost, answers atomic.Int32 // how many are to be lost, and how many there were
	raise := fence.Raise
	fence.Raise = func(ctx context.Context, lease any, to int64) error {
		err := raise(ctx, lease, to)
		if answers.Add(1) <= lost.Load() {
			return lock.ErrUnavailable
		}
		return err
	}
	t.Cleanup(func() { fence.Raise = raise }) // after the quorum's end
	q := startServers(t, 3).quorum(t, lock.Options{})
	unlock(t, take(t, q))
	answers.Store(0)
	lost.Store(2)
	lease, err := q.TryLock(t.Context(), "a")
	if lost.Store(0); err == nil {
		t.Fatalf("fence %d is on one server of three", lease.Fence())
	} else if !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrNotAcquired) {
		t.Error(err)
	}
	unlock(t, take(t, q)) // and nothing is left of it
}

// The answers to an Unlock are lost and it is sent again, and somebody else is quicker.
// That is no loss: it was given back.
func TestAQuorumsUnlockMayArriveTwice(t *testing.T) {
	t.Parallel()
	all := startServers(t, 3)
	links, nodes := all.behindProxies(t)
	q, other := open(t, nodes, lock.Options{}), all.quorum(t, lock.Options{})
	ctx := t.Context()
	lease := take(t, q)
	for _, p := range links {
		p.DropReplies(1, "EVALSHA") // the next one is that of Unlock
	}
	taken := make(chan *redlock.Lease)
	go func() {
		next, _ := other.Lock(ctx, "a")
		taken <- next
	}()
	if err := lease.Unlock(ctx); err != nil && !errors.Is(err, lock.ErrUnavailable) {
		t.Error(err)
	}
	if next := <-taken; next == nil {
		t.Error("the lock was not given back")
	} else {
		unlock(t, next)
	}
}

// A server that is slower than the majority has granted the lock as well. Its grant makes
// the lease stand on one server more, also if the ctx given to Lock has ended meanwhile; it is
// not left behind until its lease ends, neither while the lock is held nor after.
func TestAGrantThatComesLateJoinsOrIsGivenBack(t *testing.T) {
	t.Parallel()
	all := startServers(t, 3)
	links, nodes := all.behindProxies(t)
	q := open(t, nodes, lock.Options{})
	owner := func() string {
		return all[2].Client(t).HGet(context.Background(), record, "o").Val()
	}
	unlock(t, take(t, q)) // loads the scripts
	redistest.Eventually(t, 20*time.Second, "it is free", func() bool { return owner() == "" })
	links[2].Delay(40 * time.Millisecond)
	redistest.Eventually(t, 20*time.Second, "it is held on three servers", func() bool {
		lease := take(t, q)
		defer unlock(t, lease)
		for end := time.Now().Add(time.Second); lease.Servers() < 3 && time.Now().Before(end); { // a busy machine takes longer than a quorum waits
			time.Sleep(time.Millisecond)
		}
		return lease.Servers() == 3
	})
	redistest.Eventually(t, 20*time.Second, "the slow one is free again", func() bool { return owner() == "" })
	for range 3 {
		unlock(t, take(t, q)) // before the slow one has answered
	}
	redistest.Eventually(t, 20*time.Second, "the slow one is free too", func() bool { return owner() == "" })
}

// The lease ends as soon as a majority has lost it, and what a minority still holds is
// given back, not renewed until its holder looks.
func TestALeaseThatAMajorityHasLostIsLost(t *testing.T) {
	t.Parallel()
	all := startView(t, 3)
	lost := make(chan error, 1)
	q := all.quorum(t, lock.Options{Hooks: lock.Hooks{Lost: func(_ string, cause error) { lost <- cause }}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for what would wait without end
	defer cancel()
	lease := take(t, q)
	for lease.Servers() < 3 { // a busy machine takes longer than a quorum waits
		unlock(t, lease)
		lease = take(t, q)
	}
	all.give(t, 0, "another") // who keeps it, so that it is not taken again
	if err := lease.Check(ctx); errors.Is(err, lock.ErrLost) || lease.Remaining() == 0 {
		t.Errorf("one of three has forgotten: %v, %v", err, lease.Remaining())
	}
	all.give(t, 1, "another")
	redistest.Eventually(t, 20*time.Second, "it is lost", func() bool { return errors.Is(lease.Check(ctx), lock.ErrLost) })
	if err := <-lost; !errors.Is(err, lock.ErrStateLost) || !errors.Is(lease.Err(), lock.ErrLost) {
		t.Errorf("%v, %v", err, lease.Err())
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, lock.ErrLost) {
		t.Error(cause)
	}
	redistest.Eventually(t, 20*time.Second, "the third is free", func() bool { return all.owner(2) == "" })
	if err := lease.Unlock(ctx); !errors.Is(err, lock.ErrLost) {
		t.Error(err)
	}
	if err := lease.Unlock(ctx); !errors.Is(err, lock.ErrNotHeld) {
		t.Error(err)
	}
}

// A closed Quorum has given back what it held, and takes nothing.
func TestAClosedQuorumHoldsNothing(t *testing.T) {
	t.Parallel()
	all := startServers(t, 3)
	q, other := all.quorum(t, lock.Options{}), all.quorum(t, lock.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for what would wait without end
	defer cancel()
	lease := take(t, q)
	if err := errors.Join(q.Close(), q.Close()); err != nil {
		t.Error(err)
	}
	if err := lease.Err(); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrClosed) {
		t.Error(err)
	}
	if _, err := q.Lock(ctx, "a"); !errors.Is(err, lock.ErrClosed) {
		t.Error(err)
	}
	unlock(t, take(t, other))
}

// The servers grant the lock and do not answer when they are given its fence. Catches a Lock
// that takes it for a lock that another has, and tries until its context ends.
func TestALockWhoseFenceNobodyConfirmsIsUnavailable(t *testing.T) {
	all := startServers(t, 3)
	raise := fence.Raise
	fence.Raise = func(context.Context, any, int64) error { return lock.ErrUnavailable }
	t.Cleanup(func() { fence.Raise = raise }) // after the quorum's end
	q := all.quorum(t, lock.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := q.Lock(ctx, "a"); !errors.Is(err, lock.ErrUnavailable) || ctx.Err() != nil {
		t.Errorf("%v, the context: %v", err, ctx.Err())
	}
}

// What a hook panics with is logged, and does not take the process down.
func TestAHookOfAQuorumThatPanicsIsContained(t *testing.T) {
	t.Parallel()
	all := startServers(t, 3)
	var log redistest.Log
	var called atomic.Int32
	fail := func() { called.Add(1); panic("the hook") }
	q := all.quorum(t, lock.Options{Logger: log.Logger(), Hooks: lock.Hooks{
		Acquired: func(string, time.Duration, bool) { fail() },
		Released: func(string, time.Duration) { fail() },
		Lost:     func(string, error) { fail() },
	}})
	unlock(t, take(t, q))
	lease := take(t, q)
	_ = q.Close()
	redistest.Eventually(t, 30*time.Second, "each was called", func() bool { return lease.Err() != nil && called.Load() == 4 })
	log.Await(t, "a hook panicked")
}

// What every server refuses alike is not "unavailable".
func TestAQuorumSaysWhatItsServersRefuse(t *testing.T) {
	t.Parallel()
	all := startServers(t, 3)
	q := all.quorum(t, lock.Options{})
	ctx := t.Context()
	for _, s := range all[:2] {
		s.Client(t).Set(ctx, record, "x", 0)
	}
	_, err := q.TryLock(ctx, "a")
	for errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrConflict) { // a busy machine takes longer than a quorum waits
		_, err = q.TryLock(ctx, "a")
	}
	if !errors.Is(err, lock.ErrConflict) {
		t.Error(err)
	}
	if _, err := q.Lock(ctx, ""); !errors.Is(err, lock.ErrConfig) {
		t.Error(err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := q.Lock(gone, "b"); !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A lease counts from when its commands were sent, and ends when fewer than a majority of
// the servers keep it.
func TestAQuorumsLeaseEndsHereBeforeItEndsInRedis(t *testing.T) {
	t.Parallel()
	all := startServers(t, 3)
	links, nodes := all.behindProxies(t)
	q := open(t, nodes, lock.Options{Lease: 5 * time.Second})
	// A server that did not answer in time, on a busy machine, has an older end, or none; two
	// of three are the majority that the lease stands on.
	majority := func() int64 {
		var ends []int64
		for _, s := range all {
			end, _ := s.Client(t).HGet(t.Context(), record, "x").Int64()
			ends = append(ends, end)
		}
		slices.Sort(ends)
		return ends[1]
	}
	unlock(t, take(t, q)) // loads the scripts
	for _, p := range links {
		p.Delay(100 * time.Millisecond) // twice the margin of this lease, and well within the 500 ms that a quorum waits
	}
	lease := take(t, q)
	endsBefore(t, "taken", lease, majority)
	before := q.Renewals()
	redistest.Eventually(t, 20*time.Second, "it is renewed", func() bool { return q.Renewals() >= before+2 })
	endsBefore(t, "renewed", lease, majority)
	unlock(t, lease)
}

// endsBefore sees that a lease ends before what Redis says, by the clock that both have.
// Redis is asked last: a renewal in between makes the lease in Redis longer, not shorter.
func endsBefore(t *testing.T, when string, lease *redlock.Lease, inRedis func() int64) {
	t.Helper()
	remaining := lease.Remaining()
	here := time.Now().Add(remaining)
	if there := time.UnixMilli(inRedis()); !here.Before(there) {
		t.Errorf("%s: the lease ends here %v after its end in Redis", when, here.Sub(there))
	}
}

// A Quorum asks its servers again and again and waits for no message. Catches a line for each
// of them, that waiters ask every 250 ms, when the connections for messages break.
func TestAQuorumDoesNotWarnOfMessagesThatItDoesNotNeed(t *testing.T) {
	t.Parallel()
	nodes := startServers(t, 3)
	links, clients := nodes.behindProxies(t)
	var log redistest.Log
	q := open(t, clients, lock.Options{Logger: log.Logger()})
	redistest.Eventually(t, 30*time.Second, "messages arrive", func() bool { return q.Live() == 3 })
	for _, link := range links {
		link.Blackhole(true)
	}
	redistest.Eventually(t, 30*time.Second, "messages do not arrive", func() bool { return q.Live() == 0 })
	_ = q.Close()
	if n := log.Count("no messages from Redis"); n != 0 {
		t.Errorf("%d lines:\n%s", n, &log)
	}
}
