package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/fence"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// Two components of a service have a Locker each, and mean the same lock, as over one Redis. A
// Prefix keeps them apart, as it does there.
func TestLockersWithoutRedisShareTheLocksOfTheirPrefix(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a, b := open(t, nil, lock.Options{Prefix: t.Name()}), open(t, nil, lock.Options{Prefix: t.Name()})
	other := open(t, nil, lock.Options{Prefix: t.Name() + ":other"})
	held := must(t)(a.Lock(ctx, "a"))
	if _, err := b.TryLock(ctx, "a"); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("the other component: %v", err)
	}
	if _, err := other.With(lock.Options{Prefix: t.Name()}).TryLock(ctx, "a"); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("a Locker that With has given the Prefix: %v", err)
	}
	unlock(t, must(t)(other.TryLock(ctx, "a")), must(t)(b.RW("a").TryLock(ctx)))
	if _, err := b.Lock(held.Context(), "a"); !errors.Is(err, lock.ErrDeadlock) {
		t.Errorf("within the lease: %v", err)
	}
	token, err := held.Detach(ctx, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	_ = a.Close() // as the process that has made the token may end
	unlock(t, must(t)(b.Attach(ctx, token)))
	if !b.Stats().Live || b.Check(ctx) != nil {
		t.Errorf("%+v, %v", b.Stats(), b.Check(ctx))
	}
	if _, err := a.TryLock(ctx, "a"); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// What only a Redis can keep is refused where it is asked for, and not left out in silence.
func TestOptionsThatNeedARedisAreRefusedWithoutOne(t *testing.T) {
	t.Parallel()
	l := open(t, nil, lock.Options{Prefix: t.Name(), ReplicaTimeout: time.Second})
	for name, o := range map[string]lock.Options{"Replicas": {Replicas: 1}, "Fsync": {Fsync: true, Lease: time.Minute}} {
		_, err := lock.New(nil, o)
		if !errors.Is(err, lock.ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("New: %s: %v", name, err)
		}
		if _, err := l.With(o).Lock(t.Context(), "a"); !errors.Is(err, lock.ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("With: %s: %v", name, err)
		}
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		over := open(t, rdb, o)
		_, _ = over.Close(), rdb.Close()
	}
}

// Each caller is woken by the one before it, and waits for no bid that is due: in a bubble no
// time passes at all.
func TestAHandOffWithinAProcessTakesNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ctx := &backend{memory: lock.NewMemory()}, t.Context()
		var order []string
		var all sync.WaitGroup
		gate := must(t)(s.open(t, lock.Options{}).Lock(ctx, "a"))
		for i := range 5 {
			l := s.open(t, lock.Options{})
			all.Go(func() {
				_ = l.Do(ctx, "a", func(context.Context, *lock.Lease) error {
					order = append(order, fmt.Sprint(i))
					return nil
				})
			})
			synctest.Wait()
		}
		begin := time.Now()
		unlock(t, gate)
		all.Wait()
		goOn := make(chan struct{})
		for range 5 { // one does the work, and the others hear that it is done
			l := s.open(t, lock.Options{})
			all.Go(func() {
				if _, err := l.Once(ctx, "a", time.Hour, func(context.Context) error { <-goOn; return nil }); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(goOn)
		all.Wait()
		if took := time.Since(begin); took > 0 || strings.Join(order, "") != "01234" {
			t.Errorf("it took %v, order %v", took, order)
		}
	})
}

// A lease that nobody gives back ends: one of NoRenewal, one of a token, and one beyond MaxHold,
// whose holder is told before another has the lock. Until then a waiter waits, and no longer.
func TestLeasesEndWithoutRedis(t *testing.T) {
	for name, test := range map[string]struct {
		o    lock.Options
		ends time.Duration
		then func(t *testing.T, held *lock.Lease)
	}{
		"NoRenewal": {lock.Options{NoRenewal: true}, 10 * time.Second, func(*testing.T, *lock.Lease) {}},
		"MaxHold":   {lock.Options{MaxHold: time.Minute}, time.Minute, func(*testing.T, *lock.Lease) {}},
		"a token": {lock.Options{}, time.Hour, func(t *testing.T, held *lock.Lease) {
			if _, err := held.Detach(t.Context(), time.Hour); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, ctx := &backend{memory: lock.NewMemory()}, t.Context()
				begin := time.Now()
				held := must(t)(s.open(t, test.o).Lock(ctx, "a"))
				test.then(t, held)
				next := must(t)(s.open(t, lock.Options{}).Lock(ctx, "a"))
				if took := time.Since(begin); took < test.ends || took > test.ends+time.Second {
					t.Errorf("the next had it after %v", took)
				}
				if held.Context().Err() == nil || held.Err() == nil {
					t.Error("the holder does not know")
				}
				unlock(t, next)
			})
		})
	}
}

// A process that locks a new name for each user does not grow for ever. Work of Once is
// remembered as long as it counts, and fences go on where they were.
func TestAProcessForgetsTheNamesThatAreNotInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ctx := &backend{memory: lock.NewMemory()}, t.Context()
		l, dead := s.open(t, lock.Options{}), s.open(t, lock.Options{NoRenewal: true})
		once := func(want bool) {
			t.Helper()
			if ran, err := l.Once(ctx, "once", time.Hour, func(context.Context) error { return nil }); ran != want || err != nil {
				t.Error(ran, err)
			}
		}
		once(true)
		held := must(t)(l.Lock(ctx, "held"))
		ahead := must(t)(l.Lock(ctx, "name0"))
		last := ahead.Fence() + (24 * time.Hour).Microseconds() // ahead of the clock, as after many locks in a short time
		if err := fence.Raise(ctx, ahead, last); err != nil {
			t.Fatal(err)
		}
		unlock(t, ahead)
		for round := range 5 {
			for i := range 1000 {
				unlock(t, must(t)(l.Lock(ctx, fmt.Sprint("name", round*1000+i))))
				must(t)(dead.Lock(ctx, fmt.Sprint("dead", round*1000+i)))
				must(t)(dead.Semaphore(fmt.Sprint("dead", round*1000+i), 2).Acquire(ctx))
			}
			if n := s.memory.Records(); n > 6500 { // those in use, and as many again
				t.Errorf("round %d: %d locks are remembered", round, n)
			}
			time.Sleep(2 * time.Minute)
		}
		for range 5000 { // a process that goes on with few names
			unlock(t, must(t)(l.Lock(ctx, "few")))
		}
		if n := s.memory.Records(); n > 3 {
			t.Errorf("%d locks are remembered of few, held and once", n)
		}
		once(false)
		if err := held.Check(ctx); err != nil {
			t.Error(err)
		}
		first := must(t)(l.Lock(ctx, "name0"))
		if first.Fence() <= last {
			t.Errorf("fence %d after %d", first.Fence(), last)
		}
		unlock(t, first)
		both := must(t)(l.LockAll(ctx, "name0", "another"))
		if both.Fence() <= first.Fence() {
			t.Errorf("fence %d of several after %d", both.Fence(), first.Fence())
		}
		unlock(t, held, both)
		time.Sleep(time.Hour)
		once(true)
	})
}

// In a bubble it is the year 2000. A test elsewhere, with a Prefix of its own, must not take what
// is held there for what nobody needs any more.
func TestABubbleKeepsItsLocksWhileOthersUseTheirs(t *testing.T) {
	t.Parallel()
	l := open(t, nil, lock.Options{Prefix: t.Name()})
	var bids atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var outside sync.WaitGroup
	outside.Go(func() {
		for ctx.Err() == nil { // each looks whether others may be forgotten
			unlock(t, must(t)(l.Lock(t.Context(), fmt.Sprint(bids.Add(1)%10))))
		}
	})
	t.Run("in a bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			inside := open(t, nil, lock.Options{Prefix: t.Name(), Lease: time.Hour})
			held := must(t)(inside.Lock(t.Context(), "held"))
			for before := bids.Load(); bids.Load() < before+100; {
				runtime.Gosched()
			}
			if err := held.Check(t.Context()); err != nil {
				t.Error(err)
			}
			begin := time.Now()
			if _, err := held.Detach(t.Context(), 10*time.Second); err != nil {
				t.Error(err)
			}
			unlock(t, must(t)(inside.Lock(t.Context(), "held")))
			if took := time.Since(begin); took < 10*time.Second || took > 11*time.Second {
				t.Errorf("a lease of 10 s lasted %v", took)
			}
		})
	})
	stop()
	outside.Wait()
}

// Histories of a mutex, with callers that give up and leases that nobody gives back.
func TestHistoriesWithinAProcessAreThoseOfAMutexWithFences(t *testing.T) {
	t.Parallel()
	for h := range redistest.Pick(5, 500) {
		s := &backend{memory: lock.NewMemory()}
		lockers := []*lock.Locker{s.open(t, lock.Options{}), s.open(t, lock.Options{}), s.open(t, lock.Options{}), s.open(t, lock.Options{StrictFIFO: true})}
		mortal := s.open(t, lock.Options{Lease: lock.MinLease, NoRenewal: true})
		result, _ := history(t, 8, 40, func(ctx context.Context, who int) (int64, func() error, error) {
			l, dies := lockers[who%4], rand.IntN(200) == 0
			if dies {
				l = mortal
			}
			lease, err := l.Lock(ctx, "a")
			if err != nil {
				return 0, nil, err
			}
			if dies {
				return lease.Fence(), func() error { return errDied }, nil
			}
			return lease.Fence(), func() error { return lease.Unlock(context.Background()) }, nil
		})
		if result != porcupine.Ok {
			t.Fatalf("history %d is %v", h, result)
		}
	}
}
