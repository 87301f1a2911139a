package lock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

func TestReadersShareAndWritersDoNot(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ls := []*lock.Locker{s.open(t, lock.Options{}), s.open(t, lock.Options{})}
		var readers, writers, most atomic.Int32
		var last atomic.Int64
		var all sync.WaitGroup
		for i := range 16 {
			rw := ls[i%2].RW("a")
			all.Go(func() {
				for range 10 {
					if i%4 == 0 {
						lease, err := rw.Lock(t.Context())
						if err != nil {
							t.Error(err)
							return
						}
						if writers.Add(1) != 1 || readers.Load() != 0 {
							t.Error("a writer is not alone")
						}
						if f := last.Swap(lease.Fence()); f >= lease.Fence() {
							t.Errorf("fence %d after %d", lease.Fence(), f)
						}
						writers.Add(-1)
						unlock(t, lease)
						continue
					}
					lease, err := rw.RLock(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					n := readers.Add(1)
					if most.Load() < n {
						most.Store(n)
					}
					if writers.Load() != 0 {
						t.Error("a reader beside a writer")
					}
					if f := last.Load(); f > lease.Fence() {
						t.Errorf("a reader has %d after %d", lease.Fence(), f)
					}
					time.Sleep(time.Millisecond)
					readers.Add(-1)
					unlock(t, lease)
				}
			})
		}
		all.Wait()
		if most.Load() < 2 {
			t.Error("no two readers at a time")
		}
		s.everyKeyEnds(t)
	})
}

// Readers that may enter beside other readers keep a writer out for ever.
func TestAWriterIsNotStarvedAndReadersBehindItEnterTogether(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		a, b := s.open(t, lock.Options{}), s.open(t, lock.Options{})
		ctx := t.Context()
		first := must(t)(a.RW("a").RLock(ctx))
		wrote := make(chan *lock.Lease, 1)
		go func() { wrote <- must(t)(b.RW("a").Lock(context.Background())) }()
		waiting(t, a, keys.ReadWrite, "a", 1)
		if _, err := a.RW("a").TryRLock(ctx); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("a reader before the writer: %v", err)
		}
		reads := make(chan *lock.Lease, 20)
		for i := range 20 {
			go func() { reads <- must(t)([]*lock.Locker{a, b}[i%2].RW("a").RLock(context.Background())) }()
		}
		waiting(t, a, keys.ReadWrite, "a", 3)
		unlock(t, first)
		w := <-wrote
		select {
		case <-reads:
			t.Fatal("a reader beside the writer")
		case <-time.After(20 * time.Millisecond):
		}
		unlock(t, w)
		var leases []*lock.Lease
		for range 20 { // all hold at the same time
			select {
			case l := <-reads:
				leases = append(leases, l)
			case <-time.After(time.Minute):
				t.Fatalf("%d of 20 readers", len(leases))
			}
		}
		if leases[0].Fence() != w.Fence() {
			t.Errorf("a reader's fence is %d, the writer's was %d", leases[0].Fence(), w.Fence())
		}
		unlock(t, leases...)
		if lease, err := a.RW("a").TryLock(ctx); err != nil {
			t.Error(err)
		} else {
			unlock(t, lease)
		}
	})
}

// Readers' leases are their own: one that lives does not keep a dead one's.
func TestACrashedReaderIsGoneAfterItsLease(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		dead := s.open(t, lock.Options{Lease: time.Second, NoRenewal: true})
		alive := s.open(t, lock.Options{})
		lost := inTime(t, func() (*lock.Lease, error) { return dead.RW("a").RLock(ctx) })
		living := must(t)(alive.RW("a").RLock(ctx))
		<-lost.Context().Done()
		time.Sleep(50 * time.Millisecond)
		if err := living.Check(ctx); err != nil {
			t.Error(err)
		}
		if err := lost.Unlock(ctx); !errors.Is(err, lock.ErrLost) {
			t.Errorf("the dead one: %v", err)
		}
		unlock(t, living)
		// To Redis its lease ends as much later as the reply to its bid took.
		redistest.Eventually(t, 20*time.Second, "a writer enters", func() bool {
			next, err := alive.RW("a").TryLock(ctx)
			return err == nil && next.Unlock(ctx) == nil
		})
	})
}

// Readers of one process who wait are served by one bid, and each by its own options. Catches
// a lease that ends because that of the reader in front of it is not to be renewed.
func TestEachReaderHasItsOwnOptions(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second // the second is renewed in time
	for name, first := range map[string]lock.Options{
		"not renewed":  {Lease: lease, NoRenewal: true},
		"renewed once": {Lease: lease, MaxHold: lease},
	} {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, s *backend) {
				ctx := t.Context()
				l := s.open(t, lock.Options{Lease: lease})
				gate := must(t)(s.open(t, lock.Options{}).RW("a").Lock(ctx))
				reads := [2]chan *lock.Lease{make(chan *lock.Lease, 1), make(chan *lock.Lease, 1)}
				for i, l := range []*lock.Locker{l.With(first), l} {
					go func() { reads[i] <- must(t)(l.RW("a").RLock(context.Background())) }()
					redistest.Eventually(t, 30*time.Second, "it waits", func() bool { return l.InRooms() == i+1 })
				}
				unlock(t, gate)
				<-(<-reads[0]).Context().Done()
				second := <-reads[1]
				redistest.Eventually(t, 10*time.Second, "the second has been renewed", func() bool { return second.Remaining() > lease/2 })
				unlock(t, second)
			})
		})
	}
}

func TestASemaphoreHasNPermits(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ls := []*lock.Locker{s.open(t, lock.Options{}), s.open(t, lock.Options{})}
		const n = 3
		var inside, most atomic.Int32
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				for range 10 {
					lease, err := ls[i%2].Semaphore("a", n).Acquire(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					now := inside.Add(1)
					if now > n {
						t.Errorf("%d inside", now)
					}
					if most.Load() < now {
						most.Store(now)
					}
					time.Sleep(time.Millisecond)
					inside.Add(-1)
					unlock(t, lease)
				}
			})
		}
		all.Wait()
		if most.Load() != n {
			t.Errorf("at most %d inside at a time", most.Load())
		}
		s.everyKeyEnds(t)
	})
}

func TestPermitsOfTheDeadComeBackAndSizesDiffer(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		const lease = 4 * time.Second
		dead := s.open(t, lock.Options{Lease: lease, NoRenewal: true})
		l := s.open(t, lock.Options{})
		for range 3 {
			must(t)(dead.Semaphore("a", 3).Acquire(ctx))
		}
		if _, err := l.Semaphore("a", 3).TryAcquire(ctx); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("a fourth: %v", err)
		}
		fourth := must(t)(l.Semaphore("a", 4).TryAcquire(ctx)) // by a larger count
		begin := time.Now()
		var back []*lock.Lease
		for range 2 {
			back = append(back, must(t)(l.Semaphore("a", 3).Acquire(ctx)))
		}
		if took := time.Since(begin); took > lease+slack {
			t.Errorf("it took %v", took)
		}
		unlock(t, append(back, fourth)...)
		for _, n := range []int{0, -1, lock.MaxPermits + 1} {
			if _, err := l.Semaphore("a", n).Acquire(ctx); !errors.Is(err, lock.ErrConfig) {
				t.Errorf("n = %d: %v", n, err)
			}
		}
	})
}

// A permit is released by a caller with a larger n, so it is granted to the next in the queue, for
// whom there are too many others. Catches that it is claimed all the same.
func TestTheSmallerOfTwoSizesWaitsForItsOwn(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l, small := s.open(t, lock.Options{}), s.open(t, lock.Options{})
		var held []*lock.Lease
		for range 4 {
			held = append(held, must(t)(l.Semaphore("a", 5).Acquire(ctx)))
		}
		got := make(chan *lock.Lease, 1)
		go func() {
			lease, err := small.Semaphore("a", 2).Acquire(ctx)
			if err != nil {
				t.Error(err)
			}
			got <- lease
		}()
		waiting(t, l, keys.Semaphore, "a", 1)
		for i, lease := range held[:2] {
			unlock(t, lease)
			select {
			case lease := <-got:
				t.Errorf("it has a permit beside %d others", 3-i)
				got <- lease
			case <-time.After(200 * time.Millisecond): // for what must not happen
			}
		}
		unlock(t, held[2])
		unlock(t, <-got, held[3])
	})
}

func TestLockAllTakesAllOrNone(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l, other := s.open(t, lock.Options{}), s.open(t, lock.Options{})
		one := must(t)(other.Lock(ctx, "c"))
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if _, err := l.LockAll(short, "a", "b", "c"); !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		redistest.Eventually(t, 20*time.Second, "the others are free", func() bool {
			info, _ := l.Inspect(ctx, "a")
			return !info.Held
		})
		unlock(t, one)
		lease := must(t)(l.LockAll(ctx, "c", "a", "b", "a"))
		for _, name := range []string{"a", "b", "c"} {
			if _, err := other.TryLock(ctx, name); !errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("%s: %v", name, err)
			}
			if info, _ := l.Inspect(ctx, name); info.Fence != lease.Fence() {
				t.Errorf("the fence of %s is %d, the lease's %d", name, info.Fence, lease.Fence())
			}
		}
		if _, err := l.LockAll(lease.Context(), "d", "b"); !errors.Is(err, lock.ErrDeadlock) {
			t.Errorf("got %v", err)
		}
		unlock(t, lease)
		next := must(t)(l.Lock(ctx, "a"))
		if next.Fence() <= lease.Fence() {
			t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
		}
		unlock(t, next)
		for _, names := range [][]string{nil, {""}, {"a", ""}} {
			if _, err := l.LockAll(ctx, names...); !errors.Is(err, lock.ErrConfig) {
				t.Errorf("%q: %v", names, err)
			}
		}
	})
}

// Without one order for all, two of these wait for each other.
func TestOverlappingSetsDoNotBlockEachOther(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ls := []*lock.Locker{s.open(t, lock.Options{}), s.open(t, lock.Options{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		sets := [][]string{{"a", "b"}, {"b", "a"}, {"c", "b", "a"}, {"b", "c"}}
		inside := map[string]*atomic.Int32{"a": {}, "b": {}, "c": {}}
		var all sync.WaitGroup
		for i, set := range slices.Concat(sets, sets) {
			all.Go(func() {
				for range 10 {
					lease, err := ls[i%2].LockAll(ctx, set...)
					if err != nil {
						t.Error(err)
						return
					}
					for _, name := range set {
						if inside[name].Add(1) != 1 {
							t.Error("two holders of", name)
						}
					}
					for _, name := range set {
						inside[name].Add(-1)
					}
					unlock(t, lease)
				}
			})
		}
		all.Wait()
	})
}

func TestTheLossOfOneEndsAll(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	l := open(t, s.Client(t), lock.Options{Lease: time.Minute})
	lease := must(t)(l.LockAll(t.Context(), "a", "b"))
	rdb.Del(t.Context(), keys.Lock("", keys.Mutex, "b")[0])
	l.RenewAll()
	select {
	case <-lease.Context().Done():
	case <-time.After(15 * time.Second):
		t.Fatal("not noticed")
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrStateLost) {
		t.Error(err)
	}
	if info, _ := l.Inspect(t.Context(), "a"); info.Held {
		t.Error("the other is still held")
	}
}

// A hundred items in five parts: no part is oversold, and none is left over.
func TestAStockInPartsIsSoldExactly(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ls := []*lock.Locker{s.open(t, lock.Options{}), s.open(t, lock.Options{})}
		var stock [5]int
		for i := range stock {
			stock[i] = 20
		}
		var sold atomic.Int32
		var all sync.WaitGroup
		for i := range 130 {
			all.Go(func() {
				parts := ls[i%2].Striped("stock", len(stock))
				var empty []int
				for len(empty) < len(stock) {
					lease, part, err := parts.LockAny(t.Context(), empty...)
					if err != nil {
						t.Error(err)
						return
					}
					if stock[part] > 0 {
						stock[part]--
						sold.Add(1)
						unlock(t, lease)
						return
					}
					empty = append(empty, part)
					unlock(t, lease)
				}
			})
		}
		all.Wait()
		if sold.Load() != 100 || stock != [5]int{} {
			t.Errorf("%d sold, %v left", sold.Load(), stock)
		}
	})
}

func TestStripesOfAKeyAreTheSameEverywhere(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		a, b := s.open(t, lock.Options{}), s.open(t, lock.Options{})
		lease := must(t)(a.Striped("a", 64).LockKey(ctx, "user 7"))
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if _, err := b.Striped("a", 64).LockKey(short, "user 7"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Error(err)
		}
		unlock(t, must(t)(b.Striped("a", 64).LockKey(ctx, "user 8")))
		if got := a.Striped("a", 64).StripeOf("user 7"); got != 19 { // it stands in what other versions do
			t.Errorf("stripe %d", got)
		}
		for _, n := range []int{0, -3, lock.MaxStripes + 1} {
			if _, err := a.Striped("a", n).LockKey(ctx, "x"); !errors.Is(err, lock.ErrConfig) {
				t.Errorf("n = %d: %v", n, err)
			}
		}
		if _, _, err := a.Striped("a", 2).LockAny(ctx, 0, 1); !errors.Is(err, lock.ErrConfig) {
			t.Error(err)
		}
		unlock(t, lease)
	})
}
