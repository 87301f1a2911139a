package lock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

type servers []*redistest.Server

func (s servers) quorum(t *testing.T, o lock.Options) *lock.Quorum {
	t.Helper()
	q, err := lock.NewQuorum(s.clients(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	return q
}

func (s servers) clients(t *testing.T) (all []redis.UniversalClient) {
	for _, server := range s {
		all = append(all, server.Client(t, func(o *redis.Options) { o.DialerRetries = 1 }))
	}
	return all
}

func startServers(t *testing.T, n int) (all servers) {
	for range n {
		all = append(all, redistest.Start(t))
	}
	return all
}

// Any two of five servers may hang, die and forget: there is one holder, and
// fences grow. A quorum that took the highest fence of its own majority without
// putting it on the others would repeat one here.
func TestAQuorumSurvivesAnyMinority(t *testing.T) {
	nodes := startServers(t, 5)
	qs := []*lock.Quorum{nodes.quorum(t, lock.Options{}), nodes.quorum(t, lock.Options{}), nodes.quorum(t, lock.Options{})}
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
func contend(t *testing.T, qs []*lock.Quorum, more func() bool, strike func(i int), lost *atomic.Int32) (total int64) {
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
	nodes := startServers(t, 3)
	var renewed atomic.Int32
	q := nodes.quorum(t, lock.Options{Lease: 2 * time.Second, Hooks: lock.Hooks{Renewed: func(_ string, _ time.Duration, err error) {
		if err == nil {
			renewed.Add(1)
		}
	}}})
	ctx := t.Context()
	lease := must(t)(q.Lock(ctx, "a"))
	if _, err := q.TryLock(ctx, "a"); !errors.Is(err, lock.ErrNotAcquired) {
		t.Error(err)
	}
	if _, err := q.Lock(lease.Context(), "a"); !errors.Is(err, lock.ErrDeadlock) {
		t.Error(err)
	}
	if _, err := lease.Detach(ctx, time.Second); !errors.Is(err, lock.ErrConfig) {
		t.Error(err)
	}
	nodes[0].Kill()
	before := renewed.Load()
	redistest.Eventually(t, 20*time.Second, "it is renewed by the two others", func() bool { return renewed.Load() >= before+2 })
	if err := errors.Join(lease.Err(), lease.Check(ctx)); err != nil {
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
	if took := time.Since(begin); took > time.Second {
		t.Errorf("it took %v", took)
	}
	nodes[1].Cont()
	if err := lease.Unlock(ctx); !errors.Is(err, lock.ErrLost) {
		t.Error(err)
	}
	for _, o := range []lock.Options{{Replicas: 1}, {StrictFIFO: true}, {Lease: 1}} {
		if _, err := lock.NewQuorum(nodes.clients(t), o); !errors.Is(err, lock.ErrConfig) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := lock.NewQuorum(nil, lock.Options{}); !errors.Is(err, lock.ErrConfig) {
		t.Error(err)
	}
}

// One server's clock is an hour ahead. When it is gone the next fence must still be
// larger, which it is only if the first one was put on the others too.
func TestAQuorumsFenceIsOnAMajority(t *testing.T) {
	nodes := startServers(t, 3)
	q := nodes.quorum(t, lock.Options{})
	ctx := t.Context()
	ahead := time.Now().Add(time.Hour).UnixMicro()
	nodes[0].Client(t).HSet(ctx, keys.Lock("", keys.Quorum, "a")[0], "f", ahead, "b", 1, "o", "")
	first := must(t)(q.Lock(ctx, "a"))
	if first.Fence() <= ahead {
		t.Fatalf("fence %d after %d", first.Fence(), ahead)
	}
	unlock(t, first)
	nodes[0].Kill()
	next := must(t)(q.Lock(ctx, "a"))
	if next.Fence() <= first.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), first.Fence())
	}
	unlock(t, next)
}

// A grant whose fence a majority did not take must not stand: the next one could be
// made by those who did not, with the same fence. Here two of three lose their answer.
func TestAQuorumsLockNeedsItsFenceOnAMajority(t *testing.T) {
	var links []*redistest.FaultProxy
	var nodes []redis.UniversalClient
	for _, s := range startServers(t, 3) {
		p := redistest.Proxy(t, s.Addr())
		links, nodes = append(links, p), append(nodes, p.Client(t, quick))
	}
	q, err := lock.NewQuorum(nodes, lock.Options{Lease: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	ctx := t.Context()
	warm := must(t)(q.Lock(ctx, "a"))
	if err := warm.Check(ctx); err != nil {
		t.Error(err)
	}
	unlock(t, warm)
	for _, p := range links[:2] {
		p.DropReplies(100, "EVALSHA "+lock.RenewScript.Hash())
	}
	if lease, err := q.TryLock(ctx, "a"); err == nil {
		t.Fatalf("fence %d is on one server of three", lease.Fence())
	} else if !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrNotAcquired) {
		t.Error(err)
	}
	for _, p := range links {
		p.Heal()
	}
	unlock(t, must(t)(q.Lock(ctx, "a"))) // and nothing is left of it
}

// The answers to an Unlock are lost and it is sent again, and somebody else is quicker.
// That is no loss: it was given back.
func TestAQuorumsUnlockMayArriveTwice(t *testing.T) {
	nodes := startServers(t, 3)
	q, other := nodes.quorum(t, lock.Options{}), nodes.quorum(t, lock.Options{})
	ctx := t.Context()
	lease := must(t)(q.Lock(ctx, "a"))
	for range 2 {
		if given, err := lease.SendRelease(ctx); err != nil || !given {
			t.Errorf("a release: %v, %v", given, err)
		}
		if _, err := other.TryLock(ctx, "a"); err != nil && !errors.Is(err, lock.ErrNotAcquired) {
			t.Error(err)
		}
	}
}
