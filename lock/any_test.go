package lock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// holdAll takes every stripe of "stock".
func holdAll(t *testing.T, l *lock.Locker, n int) []*lock.Lease {
	t.Helper()
	leases := make([]*lock.Lease, n)
	for range n {
		lease, stripe, err := l.Striped("stock", n).LockAny(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		leases[stripe] = lease
	}
	return leases
}

// A result is that of a LockAny.
type result struct {
	lease  *lock.Lease
	stripe int
	err    error
}

func lockAny(ctx context.Context, l *lock.Locker, n int) <-chan result {
	got := make(chan result, 1)
	go func() {
		lease, stripe, err := l.Striped("stock", n).LockAny(ctx)
		got <- result{lease, stripe, err}
	}()
	return got
}

// inQueues waits until so many stand in the queue of each stripe.
func inQueues(t *testing.T, l *lock.Locker, stripes, n int) {
	t.Helper()
	for i := range stripes {
		waiting(t, l, keys.Stripe, keys.StripeName("stock", i), n)
	}
}

// Catches a LockAny that waits for one stripe, which it has chosen, while another is free.
func TestLockAnyGetsWhicheverStripeIsFreedFirst(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		const n = 5
		var acquired atomic.Int32
		other := s.open(t, lock.Options{})
		l := s.open(t, lock.Options{Hooks: lock.Hooks{Acquired: func(string, time.Duration, bool) { acquired.Add(1) }}})
		redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
		held := holdAll(t, other, n)
		lag := redistest.MeasureLag(t)
		for freed := range n {
			before := l.Stats()
			got := lockAny(t.Context(), l, n)
			inQueues(t, other, n, 1)
			if now := l.Stats(); now.Waiting != 1 || now.Refused != before.Refused {
				t.Errorf("while it waits: %+v", now)
			}
			begin := time.Now()
			unlock(t, held[freed])
			it := <-got
			if it.err != nil || it.stripe != freed {
				t.Fatalf("stripe %d was freed, got %d, %v", freed, it.stripe, it.err)
			}
			if took := time.Since(begin); took > lag.Allow(400*time.Millisecond) { // without the message it may be a second
				t.Errorf("stripe %d: it took %v", freed, took)
			}
			inQueues(t, other, n, 0)
			redistest.Eventually(t, 30*time.Second, "it keeps this lock alone", func() bool { return l.Kept() == 1 })
			if now := l.Stats(); now.Acquired != before.Acquired+1 || now.Waits != before.Waits+1 || now.HandOffs != before.HandOffs+1 || now.Waiting != 0 || now.Held != 1 {
				t.Errorf("one call was %+v, and is %+v", before, now)
			}
			unlock(t, it.lease)
			held[freed] = must(t)(other.Striped("stock", n).LockKey(t.Context(), keyOf(other, n, freed)))
		}
		if got := acquired.Load(); got != n {
			t.Errorf("Hooks.Acquired was called %d times for %d calls", got, n)
		}
	})
}

// keyOf is a key of a stripe.
func keyOf(l *lock.Locker, n, stripe int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("key", i); l.Striped("stock", n).StripeOf(key) == stripe {
			return key
		}
	}
}

func TestALockAnyThatGivesUpLeavesNothing(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		const n = 5
		l, other := s.open(t, lock.Options{}), s.open(t, lock.Options{})
		held := holdAll(t, other, n)
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			got := lockAny(ctx, l, n)
			inQueues(t, other, n, 1)
			cancel()
			if it := <-got; !errors.Is(it.err, lock.ErrNotAcquired) || !errors.Is(it.err, context.Canceled) || it.stripe != -1 {
				t.Errorf("got %+v", it)
			}
			inQueues(t, other, n, 0)
			redistest.Eventually(t, 30*time.Second, "nothing is kept", func() bool { return l.Kept() == 0 && !l.InQueue() })
		}
		if now := l.Stats(); now.GaveUp != 3 || now.Waiting != 0 {
			t.Errorf("%+v", now)
		}
		unlock(t, held...)
		unlock(t, holdAll(t, other, n)...) // nothing was granted to who had left
		closed := s.open(t, lock.Options{})
		held = holdAll(t, other, n)
		got := lockAny(t.Context(), closed, n)
		inQueues(t, other, n, 1)
		_ = closed.Close()
		if it := <-got; !errors.Is(it.err, lock.ErrClosed) {
			t.Errorf("got %v", it.err)
		}
		inQueues(t, other, n, 0)
		unlock(t, held...)
	})
}

// A waiter has one stripe, and hears then that it was granted another. Catches a LockAny
// that keeps both until it is closed: they are renewed.
func TestWhatLockAnyIsGrantedBesidesIsGivenBack(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	const n = 2
	l, other := open(t, p.Client(t, quick), lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{Lease: time.Minute})
	redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
	for range redistest.Pick(10, 200) {
		gates := holdAll(t, other, n)
		got := lockAny(t.Context(), l, n)
		inQueues(t, other, n, 1)
		held, release := p.HoldReply("EVALSHA " + lock.AcquireScript.Hash())
		unlock(t, gates[0])
		<-held
		unlock(t, gates[1])
		it := <-got
		release()
		if it.err != nil {
			t.Fatal(it.err)
		}
		soon, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		besides := must(t)(other.Striped("stock", n).LockKey(soon, keyOf(l, n, 1-it.stripe)))
		cancel()
		redistest.Eventually(t, 30*time.Second, "it keeps one", func() bool { return l.Kept() == 1 })
		unlock(t, it.lease, besides)
	}
}

// Stripes that are freed in one moment are granted to the first who waits, and it takes one.
func TestStripesThatAreFreedAtOnceServeTwo(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		const n = 2
		other := s.open(t, lock.Options{})
		a, b := s.open(t, lock.Options{}), s.open(t, lock.Options{})
		ls := []*lock.Locker{a, a, b}
		for _, l := range ls {
			redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
		}
		for range redistest.Pick(20, 500) {
			held := holdAll(t, other, n)
			var waits []<-chan result
			for i, l := range ls {
				waits = append(waits, lockAny(t.Context(), l, n))
				inQueues(t, other, n, i/2+1) // the second of a stands behind the first
			}
			begin := time.Now()
			var both sync.WaitGroup
			for _, lease := range held {
				both.Go(func() { unlock(t, lease) })
			}
			both.Wait()
			for range ls { // each is served, and then the next
				select {
				case it := <-waits[0]:
					waits[0] = nil
					must(t)(it.lease, it.err)
					unlock(t, it.lease)
				case it := <-waits[1]:
					waits[1] = nil
					must(t)(it.lease, it.err)
					unlock(t, it.lease)
				case it := <-waits[2]:
					waits[2] = nil
					must(t)(it.lease, it.err)
					unlock(t, it.lease)
				}
			}
			if took := time.Since(begin); took > slack { // a lease is 10 s
				t.Errorf("it took %v", took)
			}
			inQueues(t, other, n, 0)
		}
	})
}

// A hall is n stripes, and counts who is inside and for how many turns each has waited.
type hall struct {
	inside [5]atomic.Int32
	turns  atomic.Int64
	most   atomic.Int64
}

func (h *hall) visit(ctx context.Context, t *testing.T, l *lock.Locker) {
	came := h.turns.Load()
	lease, stripe, err := l.Striped("stock", len(h.inside)).LockAny(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	waited := h.turns.Add(1) - came
	for most := h.most.Load(); waited > most && !h.most.CompareAndSwap(most, waited); most = h.most.Load() {
	}
	if n := h.inside[stripe].Add(1); n != 1 {
		t.Errorf("%d have stripe %d", n, stripe)
	}
	time.Sleep(time.Millisecond)
	h.inside[stripe].Add(-1)
	unlock(t, lease)
}

// Many wait for a few stripes: each is served after some turns of the others, which do not
// become more with the time.
func TestNobodyStarvesOfThoseWhoTakeAnyStripe(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		const clients, each = 3, 10
		ls := make([]*lock.Locker, clients)
		for i := range ls {
			ls[i] = s.open(t, lock.Options{})
			redistest.Eventually(t, 30*time.Second, "the subscription stands", ls[i].Hears)
		}
		var h hall
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		gate := holdAll(t, ls[0], len(h.inside)) // none gets a start
		var all sync.WaitGroup
		for i := range clients * each {
			all.Go(func() {
				for range redistest.Pick(50, 1000) {
					h.visit(ctx, t, ls[i%clients])
				}
			})
		}
		inQueues(t, ls[0], len(h.inside), clients)
		before, begin := s.scripts(), time.Now()
		unlock(t, gate...)
		all.Wait()
		took, turns := time.Since(begin), h.turns.Load()
		t.Logf("%d turns, %.0f a second, %.1f scripts each; nobody waited for more than %d", turns, float64(turns)/took.Seconds(),
			float64(s.scripts()-before)/float64(turns), h.most.Load())
		// Turns count from the call on, so also those that pass while its five tries are on their way: on a busy machine a
		// single reply may take a hundred turns. A caller that starves waits for nearly all, 1500 and more.
		if most := h.most.Load(); most > 25*clients*each {
			t.Errorf("somebody waited for %d turns", most)
		}
		inQueues(t, ls[0], len(h.inside), 0)
		for _, l := range ls {
			redistest.Eventually(t, 30*time.Second, "nothing is kept", func() bool { return l.Kept() == 0 })
		}
	})
}

// A crowd of queues would cost each second as many scripts.
func TestLockAnyStandsInTheShortestQueuesAndInNoMoreThan64(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		const n, crowded = 70, 3
		ls := []*lock.Locker{s.open(t, lock.Options{}), s.open(t, lock.Options{}), s.open(t, lock.Options{})}
		held := holdAll(t, ls[0], n)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var done sync.WaitGroup
		for i := range crowded {
			done.Go(func() { _, _ = ls[1].Striped("stock", n).LockKey(ctx, keyOf(ls[1], n, i)) })
			waiting(t, ls[0], keys.Stripe, keys.StripeName("stock", i), 1)
		}
		got := lockAny(ctx, ls[2], n)
		redistest.Eventually(t, 30*time.Second, "it waits", func() bool { return ls[2].InRooms() == 64 })
		for i := range crowded {
			if waits, err := ls[0].Waiting(ctx, keys.Stripe, keys.StripeName("stock", i)); waits != 1 || err != nil {
				t.Errorf("%d wait for stripe %d, %v", waits, i, err)
			}
		}
		if n := ls[2].InRooms(); n != 64 {
			t.Errorf("it stands in %d queues", n)
		}
		cancel()
		if it := <-got; !errors.Is(it.err, context.Canceled) {
			t.Errorf("got %v", it.err)
		}
		done.Wait()
		unlock(t, held...)
	})
}

// Who has every stripe that is left would wait for himself; who has one may wait for the others.
func TestLockAnyDoesNotWaitForItsCallersOwn(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		const n = 3
		l, other := s.open(t, lock.Options{}), s.open(t, lock.Options{})
		held := holdAll(t, other, n)
		unlock(t, held[1])
		own := must(t)(l.Striped("stock", n).LockKey(t.Context(), keyOf(l, n, 1)))
		if _, _, err := l.Striped("stock", n).LockAny(own.Context(), 0, 2); !errors.Is(err, lock.ErrDeadlock) {
			t.Errorf("got %v", err)
		}
		got := lockAny(own.Context(), l, n)
		for _, i := range []int{0, 2} {
			waiting(t, other, keys.Stripe, keys.StripeName("stock", i), 1)
		}
		unlock(t, held[2])
		it := <-got
		if it.err != nil || it.stripe != 2 {
			t.Fatalf("got %+v", it)
		}
		unlock(t, it.lease, own, held[0])
	})
}

// A node of a cluster that fails is none of the others' concern: whoever takes any stripe
// has one of theirs, as long as there are any.
func TestLockAnyGoesOnWithoutANodeThatFails(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	for _, node := range cluster.Nodes { // the others serve on
		if err := node.Client(t).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err(); err != nil {
			t.Fatal(err)
		}
	}
	const n = 12
	l, other := open(t, cluster.Client(t), lock.Options{Lease: time.Minute}), open(t, cluster.Client(t), lock.Options{Lease: time.Minute})
	owner := func(i int) *redistest.Server {
		return cluster.Owner(keys.Lock("", keys.Stripe, keys.StripeName("stock", i))[0])
	}
	held := holdAll(t, other, n)
	failing := owner(0)
	var left []int
	for i := range n {
		if owner(i) != failing {
			left = append(left, i)
		}
	}
	if len(left) == n || len(left) < 2 {
		t.Fatalf("stripes %v of %d are on other nodes", left, n)
	}
	before := lockAny(t.Context(), l, n)
	inQueues(t, other, n, 1)
	failing.Kill()
	third := open(t, cluster.Client(t), lock.Options{Lease: time.Minute})
	after := lockAny(t.Context(), third, n) // of what it has not tried, some is on that node
	for _, i := range left {
		waiting(t, other, keys.Stripe, keys.StripeName("stock", i), 2)
	}
	redistest.Eventually(t, 30*time.Second, "it waits for the others alone", func() bool { return third.InRooms() == len(left) })
	for i, got := range []<-chan result{before, after} {
		unlock(t, held[left[i]])
		it := <-got
		if it.err != nil || it.stripe != left[i] {
			t.Fatalf("got %+v, want %d", it, left[i])
		}
		held[left[i]] = it.lease
	}
	unlock(t, held[left[0]])
	it := <-lockAny(t.Context(), l, n)
	if it.err != nil || it.stripe != left[0] {
		t.Fatalf("got %+v, want %d, which is free", it, left[0])
	}
	if _, _, err := l.Striped("stock", n).LockAny(t.Context(), left...); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("of those that are gone: %v", err)
	}
	unlock(t, it.lease)
	failing.Restart()
}
