package lock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A map with an entry for each name that was ever locked would grow for ever.
func TestNothingIsKeptForANameThatIsNotInUse(t *testing.T) {
	s := redistest.Start(t)
	names := redistest.Pick(2000, 200_000)
	ls := []*lock.Locker{open(t, s.Client(t), lock.Options{}), open(t, s.Client(t), lock.Options{})}
	use := func(from, to int) {
		var all sync.WaitGroup
		const workers = 4
		for w := range workers {
			all.Go(func() {
				for i := from; i < to; i++ {
					if i%10 > 0 && i%workers != w {
						continue // only each tenth is wanted by all, at about the same time
					}
					err := ls[w%2].Do(t.Context(), fmt.Sprint("name", i), func(context.Context, *lock.Lease) error { return nil })
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	use(0, 500) // buffers and connections have their size
	var growth int64
	for round := range 3 { // a busy machine may open connections on the way, in one round or another; what is kept is kept in each
		before, bytes := heapInUse(), s.Stat("used_memory")
		use(500+round*names, 500+(round+1)*names)
		for _, l := range ls {
			redistest.Eventually(t, 30*time.Second, "nothing is kept", func() bool { return l.Kept() == 0 })
		}
		growth = (heapInUse() - before) / int64(names)
		t.Logf("%d names: the heap grew by %d bytes for each, Redis by %d", names, growth, (s.Stat("used_memory")-bytes)/int64(names))
		if growth <= 64 { // the smallest entry of a map, with its name, is more
			break
		}
	}
	if growth > 64 {
		t.Errorf("the heap grew by %d bytes for each name", growth)
	}
	lock.EveryKeyEnds(t, s.Client(t))
}

// Redis has its memory back when the fences need no longer be remembered, here after a
// second, whatever the number of names; and this process has nothing of them.
func TestRedisIsAsItWasAfterTheTimeOfTheFences(t *testing.T) {
	lock.RememberFencesFor(t, "1000")
	s := redistest.Start(t)
	l := open(t, s.Client(t), lock.Options{})
	use := func(from, to int) {
		var all sync.WaitGroup
		const workers = 8
		for w := range workers {
			all.Go(func() {
				for i := from + w; i < to; i += workers {
					if err := l.Do(t.Context(), fmt.Sprint("name", i), func(context.Context, *lock.Lease) error { return nil }); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	ctl := s.Client(t)
	empty := func() bool { return ctl.DBSize(t.Context()).Val() == 0 }
	const warm = 2000
	use(0, warm)
	redistest.Eventually(t, 2*time.Minute, "the keys are gone", empty)
	goroutines, bytes := runtime.NumGoroutine(), s.Stat("used_memory")
	names := redistest.Pick(3000, 1_000_000)
	use(warm, warm+names)
	redistest.Eventually(t, 2*time.Minute, "the keys are gone", empty)
	redistest.Eventually(t, 30*time.Second, "nothing is kept", func() bool {
		return l.Kept() == 0 && runtime.NumGoroutine() <= goroutines+8 // connections
	})
	left := s.Stat("used_memory") - bytes
	t.Logf("%d names: %d goroutines, before %d; Redis has %d bytes more", names, runtime.NumGoroutine(), goroutines, left)
	if left > 200_000 { // buffers of connections; a byte for each name would be more in the long run
		t.Errorf("Redis has %d bytes more", left)
	}
}

// After the time for which a fence is remembered, the last key is gone: from all
// kinds of locks, given back or not.
func TestNothingIsLeftInRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := redistest.Mini(t)
		ctx := t.Context()
		a, b := open(t, m.Client(t), lock.Options{}), open(t, m.Client(t), lock.Options{StrictFIFO: true})
		dead := open(t, m.Client(t), lock.Options{NoRenewal: true})
		for i := range 20 {
			name := fmt.Sprint(i)
			held := must(t)(a.Lock(ctx, name))
			waits, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			_, err := b.Lock(waits, name) // leaves its queue
			cancel()
			if !errors.Is(err, lock.ErrNotAcquired) {
				t.Error(err)
			}
			unlock(t, held, must(t)(a.RW(name).RLock(ctx)), must(t)(a.RW(name+"w").Lock(ctx)), must(t)(a.Semaphore(name, 2).Acquire(ctx)))
			must(t)(dead.Lock(ctx, name))
			must(t)(dead.RW(name).RLock(ctx))
			must(t)(dead.Semaphore(name, 2).Acquire(ctx))
			if _, err := a.Once(ctx, name, time.Minute, func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
			if _, err := must(t)(a.Lock(ctx, "d"+name)).Detach(ctx, time.Minute); err != nil {
				t.Error(err)
			}
		}
		if n := m.Client(t).DBSize(ctx).Val(); n < 100 {
			t.Errorf("only %d keys: the control", n)
		}
		time.Sleep(12 * time.Minute)
		if left := m.Client(t).Keys(ctx, "*").Val(); len(left) > 0 {
			t.Errorf("%d keys are left, such as %q", len(left), left[0])
		}
		for _, l := range []*lock.Locker{a, b, dead} {
			if n := l.Kept(); n != 0 {
				t.Errorf("a Locker remembers %d things", n)
			}
		}
	})
}

// A Redis that evicts forgets locks, which no lock can prevent: but the holder
// learns it with its next renewal, the next fence is larger, and a late Unlock
// leaves the next holder alone.
func TestAnEvictedLockIsReported(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"allkeys-lru", "allkeys-random", "volatile-ttl"} {
		s := redistest.Start(t, "--maxmemory-policy", policy, "--maxmemory-samples", "10")
		rdb := s.Client(t)
		ctx := t.Context()
		var lostOnes atomic.Int32
		l := open(t, s.Client(t), lock.Options{Lease: time.Minute, Hooks: lock.Hooks{
			Lost: func(string, error) { lostOnes.Add(1) },
		}})
		other := open(t, s.Client(t), lock.Options{})
		leases := make([]*lock.Lease, 100)
		for i := range leases {
			leases[i] = must(t)(l.Lock(ctx, fmt.Sprint(i)))
		}
		if err := rdb.ConfigSet(ctx, "maxmemory", fmt.Sprint(s.Stat("used_memory")+200_000)).Err(); err != nil {
			t.Fatal(err)
		}
		filler := make([]byte, 1000)
		for i := 0; lostOnes.Load() == 0 && i < 300_000; i++ {
			if err := rdb.Set(ctx, fmt.Sprint("filler", i), filler, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
			if i%100 == 0 {
				l.RenewAll() // it need not wait until the leases are old
			}
		}
		rdb.ConfigSet(ctx, "maxmemory", "0") // it is enough
		if s.Stat("evicted_keys") == 0 || lostOnes.Load() == 0 {
			t.Errorf("%s: %d keys were evicted, %d leases lost", policy, s.Stat("evicted_keys"), lostOnes.Load())
		}
		gone := 0
		for i, lease := range leases {
			name := fmt.Sprint(i)
			exists := rdb.Exists(ctx, keys.Lock("", keys.Mutex, name)[0]).Val() == 1
			err := lease.Err()
			if !exists && err == nil {
				l.RenewAll()
				redistest.Eventually(t, 15*time.Second, "it is reported", func() bool { err = lease.Err(); return err != nil })
			}
			if err == nil {
				unlock(t, lease)
				continue
			}
			gone++
			if !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrStateLost) {
				t.Errorf("%s: %v", policy, err)
			}
			next := must(t)(other.TryLock(ctx, name))
			if next.Fence() <= lease.Fence() {
				t.Errorf("%s: fence %d after %d", policy, next.Fence(), lease.Fence())
			}
			if err := lease.Unlock(ctx); !errors.Is(err, lock.ErrLost) {
				t.Errorf("%s: Unlock: %v", policy, err)
			}
			if err := next.Check(ctx); err != nil {
				t.Errorf("%s: the next: %v", policy, err)
			}
			unlock(t, next)
		}
		t.Logf("%s: %d of %d locks were lost", policy, gone, len(leases))
	}
}

// Each key of a lock may be evicted by itself while somebody waits. Whoever waits
// is served all the same, and his fence is larger: what is missing is put back
// when he asks again, and of what is left over nothing stays in the queue.
func TestAWaiterSurvivesTheEvictionOfEachKey(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	a, b := open(t, s.Client(t), lock.Options{}), open(t, s.Client(t), lock.Options{})
	redistest.Eventually(t, 30*time.Second, "the subscription stands", b.Hears)
	for i, key := range keys.Lock("", keys.Mutex, "a") {
		held := must(t)(a.Lock(ctx, "a"))
		got := make(chan *lock.Lease, 1)
		go func() { got <- must(t)(b.Lock(context.Background(), "a")) }()
		redistest.Eventually(t, 30*time.Second, "it waits", b.InQueue)
		rdb.Del(ctx, key)
		err := held.Unlock(ctx)
		if i == 0 != errors.Is(err, lock.ErrStateLost) {
			t.Errorf("%s: Unlock: %v", key, err)
		}
		select {
		case next := <-got:
			if next.Fence() <= held.Fence() {
				t.Errorf("%s: fence %d after %d", key, next.Fence(), held.Fence())
			}
			unlock(t, next)
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the waiter is stuck", key)
		}
	}
	lock.EveryKeyEnds(t, rdb)
}
