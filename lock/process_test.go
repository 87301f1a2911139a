package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// lockedAt waits for the lock "a" on a goroutine of its own, and says when it has had it.
func lockedAt(t *testing.T, l *lock.Locker) <-chan time.Time {
	got := make(chan time.Time)
	go func() {
		lease, err := l.Lock(context.Background(), "a")
		if err != nil {
			t.Error(err)
		} else {
			defer lease.Unlock(context.Background())
		}
		got <- time.Now()
	}()
	return got
}

func TestAKilledHolderDelaysOthersByOneLease(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const lease = 4 * time.Second
	l := open(t, s.Client(t), lock.Options{Lease: lease})
	var worst time.Duration
	for range redistest.Pick(2, 20) {
		c := redistest.Child(t, "holder", s.Addr(), lease.String(), "0")
		c.Expect("at:held")
		got := lockedAt(t, l)
		redistest.Eventually(t, 20*time.Second, "it waits", func() bool {
			info, _ := l.Inspect(t.Context(), "a")
			return info.Waiting == 1
		})
		c.Kill()
		begin := time.Now()
		worst = max(worst, (<-got).Sub(begin))
		lock.EveryKeyEnds(t, s.Client(t))
	}
	t.Logf("at the worst %v with a lease of %v", worst, lease)
	if worst > lease+3*time.Second { // two leases are 8 s
		t.Errorf("it took %v", worst)
	}
}

// A process with a thousand waiters that dies costs its claim window once.
func TestDeadWaitersCostOneClaimWindow(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := open(t, s.Client(t), lock.Options{})
	redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
	gate, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	processes := redistest.Pick(2, 10) // they count as dead together, before the third's turn
	var children []*redistest.ChildProcess
	for i := range processes {
		c := redistest.Child(t, "holder", s.Addr(), "10s", "1000")
		c.Expect("at:waiting")
		redistest.Eventually(t, 30*time.Second, "it stands in the queue", func() bool {
			info, _ := l.Inspect(t.Context(), "a")
			return info.Waiting == i+1
		})
		children = append(children, c)
	}
	got := lockedAt(t, l)
	redistest.Eventually(t, 30*time.Second, "ours is last", func() bool {
		info, _ := l.Inspect(t.Context(), "a")
		return info.Waiting == processes+1
	})
	for _, c := range children {
		c.Kill()
	}
	begin := time.Now()
	_ = gate.Unlock(t.Context())
	took := (<-got).Sub(begin)
	t.Logf("%d dead processes with 1000 waiters each cost %v", processes, took)
	// Two windows at the most, and ours looks 50 ms later for each that stood before it.
	if took > 2*(2*time.Second+time.Duration(processes)*50*time.Millisecond)+slack { // a window for each waiter would be more than an hour
		t.Errorf("it took %v", took)
	}
}

// With StrictFIFO each waiter of a process has a place of its own. A process that dies costs
// its claim window once all the same: the first living waiter behind its places asks as soon
// as the window has passed, not at the pace of the hundredth in a queue.
func TestTheStrictWaitersOfADeadProcessCostOneClaimWindow(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	l := open(t, rdb, lock.Options{Logger: slog.New(slog.DiscardHandler)})
	lag := redistest.MeasureLag(t)
	// Of another process than the waiter, to whom it would pass the lock on.
	gate := must(t)(open(t, s.Client(t), lock.Options{}).Lock(t.Context(), "a"))
	dies := redistest.Child(t, "holder", s.Addr(), "10s", "100", "strict")
	dies.Expect("at:waiting")
	waiting(t, l, keys.Mutex, "a", 100)
	got := lockedAt(t, l)
	waiting(t, l, keys.Mutex, "a", 101)
	// It tells how long it may be silent: 2.5 times the time after which it asks, 3 s at least.
	until := rdb.ZScore(t.Context(), keys.Lock("", keys.Mutex, "a")[2], l.Process()).Val()
	if silent := time.Duration(until)*time.Millisecond - time.Duration(rdb.Time(t.Context()).Val().UnixMilli())*time.Millisecond; silent > 3*time.Second {
		t.Errorf("the first living waiter asks after %v", time.Duration(float64(silent)/2.5))
	}
	dies.Kill()
	begin := time.Now()
	unlock(t, gate)
	took := (<-got).Sub(begin)
	t.Logf("a dead process with 100 places costs %v", took)
	if took > lag.Allow(4*time.Second) { // the window of 2 s, and 1 s between two looks
		t.Errorf("it took %v", took)
	}
	lock.EveryKeyEnds(t, rdb)
}

// What no lock can prevent, a paused holder that goes on, the fence stops at the
// resource. The control is the same register without the look at the fence: had it
// nothing to refuse, the test would prove nothing.
func TestAPausedHolderIsStoppedByItsFence(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	const lease = 100 * time.Millisecond
	var workers []*redistest.ChildProcess
	for range 3 {
		c := redistest.Child(t, "worker", s.Addr(), lease.String(), "", "20")
		c.Expect("ready")
		workers = append(workers, c)
	}
	refused := 0
	for i := 0; i < redistest.Pick(6, 200) || refused == 0 && i < 100; i++ {
		refused, _ = rdb.HGet(t.Context(), "register", "refused").Int()
		c := workers[i%len(workers)]
		time.Sleep(time.Duration(20+rand.IntN(60)) * time.Millisecond)
		c.Stop()
		// Of two fences that are written now the second at the least is later than that
		// of who is stopped, if he is the holder.
		for range 2 {
			fence := rdb.HGet(t.Context(), "register", "fence").Val()
			redistest.Eventually(t, 30*time.Second, "another holder writes", func() bool {
				return rdb.HGet(t.Context(), "register", "fence").Val() != fence
			})
		}
		c.Cont()
	}
	rdb.Set(t.Context(), "stop", 1, 0)
	for _, c := range workers {
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
	refused, _ = rdb.HGet(t.Context(), "register", "refused").Int()
	writes, _ := rdb.HGet(t.Context(), "register", "writes").Int()
	t.Logf("%d writes, %d refused, which a register without fences would have taken", writes, refused)
	if writes < 50 {
		t.Errorf("only %d writes", writes)
	}
	if refused == 0 {
		t.Error("the control has no stale write: the pauses did not strike")
	}
}

// A process that is killed may have passed the lock on any number of times. Another's fence is
// larger all the same: a worker ends with an error if what it writes under its lease is refused.
func TestAKilledCohortLeavesALowerFence(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	const lease = 500 * time.Millisecond
	fence := func() int64 { n, _ := rdb.HGet(t.Context(), "register", "fence").Int64(); return n }
	start := func() *redistest.ChildProcess {
		c := redistest.Child(t, "worker", s.Addr(), lease.String(), "", "3") // short enough for a turn to have several
		c.Expect("ready")
		return c
	}
	for range redistest.Pick(3, 50) {
		dies := start()
		for last, passed := fence(), false; !passed; { // it has the lock, and has passed it on
			redistest.Eventually(t, 30*time.Second, "it writes", func() bool { return fence() > last })
			now := fence()
			last, passed = now, now == last+1
		}
		lives := start()
		dies.Kill()
		last := fence()
		redistest.Eventually(t, 30*time.Second, "the other writes", func() bool { return fence() > last+1 })
		rdb.Set(t.Context(), "stop", 1, 0)
		if err := lives.Wait(); err != nil {
			t.Error(err)
		}
		rdb.Del(t.Context(), "stop")
	}
}

func TestTwoProcessesSellExactlyWhatThereIs(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"naive", "lock"} {
		s := redistest.Start(t)
		rdb := s.Client(t)
		rdb.Set(t.Context(), "stock", 100, 0)
		var sellers []*redistest.ChildProcess
		for range 2 {
			c := redistest.Child(t, "seller", s.Addr(), how)
			c.Expect("at:ready")
			sellers = append(sellers, c)
		}
		for _, c := range sellers {
			c.Go("ready")
		}
		for _, c := range sellers {
			if err := c.Wait(); err != nil {
				t.Error(err)
			}
		}
		sold, _ := rdb.Get(t.Context(), "sold").Int()
		t.Logf("%s: %d of 100 sold", how, sold)
		if how == "lock" && sold != 100 {
			t.Errorf("sold %d of 100", sold)
		}
		if how == "naive" && sold <= 100 {
			t.Errorf("the control sold %d: the test has no teeth", sold)
		}
	}
}

// A semaphore that counted its holders would be short of the killed ones' permits.
func TestPermitsOfAKilledProcessComeBack(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const lease = 5 * time.Second // that of the process that lives is renewed in time
	l := open(t, s.Client(t), lock.Options{})
	sem := l.Semaphore("a", 4)
	for range redistest.Pick(2, 20) {
		var children []*redistest.ChildProcess
		for range 2 {
			c := redistest.Child(t, "permits", s.Addr(), lease.String(), "2")
			c.Expect("at:held")
			children = append(children, c)
		}
		if _, err := sem.TryAcquire(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("a fifth permit: %v", err)
		}
		children[0].Kill()
		begin := time.Now()
		back := []*lock.Lease{must(t)(sem.Acquire(t.Context())), must(t)(sem.Acquire(t.Context()))}
		if took := time.Since(begin); took > lease+slack {
			t.Errorf("it took %v", took)
		}
		if _, err := sem.TryAcquire(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("one of the living process' permits: %v", err)
		}
		unlock(t, back...)
		children[1].Go("held")
		if err := children[1].Wait(); err != nil {
			t.Error(err)
		}
	}
}

// The recipe of the old manuals: delete the expired lock, then take it. Two who see
// the same expired lock both get it. Ours has one winner.
func TestAnExpiredLockHasOneWinner(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	const contenders = 16
	race := func(try func(i int) bool) (winners int) {
		start, won := make(chan struct{}), make(chan bool)
		for i := range contenders {
			go func() { <-start; won <- try(i) }()
		}
		close(start)
		for range contenders {
			if <-won {
				winners++
			}
		}
		return winners
	}
	doubles := 0
	for round := 0; round < 50 || doubles == 0 && round < 5000; round++ { // a busy machine may run one after the other
		key := fmt.Sprint("naive", round)
		rdb.Set(ctx, key, time.Now().Add(-time.Second).UnixMilli(), 0)
		if race(func(int) bool {
			if ends, err := rdb.Get(ctx, key).Int64(); err == redis.Nil || err == nil && ends < time.Now().UnixMilli() {
				rdb.Del(ctx, key)
				return rdb.SetNX(ctx, key, time.Now().Add(time.Minute).UnixMilli(), 0).Val()
			}
			return false
		}) > 1 {
			doubles++
		}
	}
	if doubles == 0 {
		t.Error("the control had one winner each time: the test has no teeth")
	}
	var lockers []*lock.Locker
	for range 4 {
		lockers = append(lockers, open(t, s.Client(t), lock.Options{}))
	}
	const lease = 500 * time.Millisecond
	dead := open(t, s.Client(t), lock.Options{Lease: lease, NoRenewal: true})
	rounds := redistest.Pick(50, 1000)
	for round := range rounds {
		inTime(t, func() (*lock.Lease, error) { return dead.Lock(ctx, fmt.Sprint(round)) })
	}
	time.Sleep(lease)
	for round := range rounds {
		name := fmt.Sprint(round)
		if winners := race(func(i int) bool {
			_, err := lockers[i%len(lockers)].TryLock(ctx, name)
			return err == nil
		}); winners != 1 {
			t.Errorf("%d winners", winners)
		}
	}
}
