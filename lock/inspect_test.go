package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// Inspect knew mutexes alone: of readers and permits, which stand in another key, it said
// that nobody had the lock.
func TestInspectTellsOfEveryKind(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l := s.open(t, lock.Options{Lease: 50 * time.Second, NoRenewal: true, Label: "host 7"}) // nothing but Inspect touches it
		rw, sem, stripes := l.RW("a"), l.Semaphore("a", 3), l.Striped("a", 8)
		none := func() (*lock.Lease, error) { return nil, nil }
		for _, test := range []struct {
			name    string
			take    []func() (*lock.Lease, error)
			inspect func() (lock.Info, error)
			label   string
		}{
			{"mutex", list(func() (*lock.Lease, error) { return l.Lock(ctx, "a") }), func() (lock.Info, error) { return l.Inspect(ctx, "a") }, "host 7"},
			{"writer", list(func() (*lock.Lease, error) { return rw.Lock(ctx) }), func() (lock.Info, error) { return rw.Inspect(ctx) }, "host 7"},
			{"readers", slicesOf(5, func() (*lock.Lease, error) { return rw.RLock(ctx) }), func() (lock.Info, error) { return rw.Inspect(ctx) }, ""},
			{"permits", slicesOf(3, func() (*lock.Lease, error) { return sem.Acquire(ctx) }), func() (lock.Info, error) { return sem.Inspect(ctx) }, ""},
			{"stripe", list(func() (*lock.Lease, error) { return stripes.LockKey(ctx, "k") }), func() (lock.Info, error) { return stripes.Inspect(ctx, stripes.StripeOf("k")) }, "host 7"},
			{"another stripe", list(none), func() (lock.Info, error) { return stripes.Inspect(ctx, (stripes.StripeOf("k")+1)%8) }, ""},
			{"once", list(none), func() (lock.Info, error) { return l.InspectOnce(ctx, "a") }, ""},
		} {
			var leases []*lock.Lease
			for _, take := range test.take {
				if lease := must(t)(take()); lease != nil {
					leases = append(leases, lease)
				}
			}
			before := s.dump(t)
			info, err := test.inspect()
			if err != nil || info.Held != (len(leases) > 0) || info.Holders != len(leases) || info.Label != test.label || info.Waiting != 0 || info.Longest != 0 || info.Done != 0 {
				t.Errorf("%s: %+v, %v", test.name, info, err)
			}
			if len(leases) > 0 && (info.Fence != leases[len(leases)-1].Fence() || info.Remaining > 50*time.Second || info.Remaining < 25*time.Second) {
				t.Errorf("%s: %+v", test.name, info)
			}
			if after := s.dump(t); after != before {
				t.Errorf("%s: %s became %s", test.name, before, after)
			}
			unlock(t, leases...)
			if info, err := test.inspect(); err != nil || info.Held || info.Holders != 0 || info.Remaining != 0 || info.Label != "" {
				t.Errorf("%s afterwards: %+v, %v", test.name, info, err)
			}
		}
		for _, stripe := range []int{-1, 8} {
			if _, err := stripes.Inspect(ctx, stripe); !errors.Is(err, lock.ErrConfig) {
				t.Errorf("stripe %d: %v", stripe, err)
			}
		}
		if _, err := l.Semaphore("a", 0).Inspect(ctx); !errors.Is(err, lock.ErrConfig) {
			t.Errorf("no permits: %v", err)
		}
	})
}

func list(take func() (*lock.Lease, error)) []func() (*lock.Lease, error) { return slicesOf(1, take) }

func slicesOf(n int, take func() (*lock.Lease, error)) (all []func() (*lock.Lease, error)) {
	for range n {
		all = append(all, take)
	}
	return all
}

func TestInspectOnceTellsWhetherTheWorkIsDone(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l := s.open(t, lock.Options{Label: "host 7"})
		if _, err := l.Once(ctx, "a", time.Hour, func(ctx context.Context) error {
			info, err := l.InspectOnce(ctx, "a")
			if !info.Held || info.Holders != 1 || info.Label != "host 7" || info.Done != 0 {
				t.Errorf("%+v, %v", info, err)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		info, err := l.InspectOnce(ctx, "a")
		if err != nil || info.Held || info.Holders != 0 || info.Done > time.Hour || info.Done < 30*time.Minute {
			t.Errorf("%+v, %v", info, err)
		}
	})
}

// A lock that has been granted and not taken up is not free, and nobody works under it.
// Leases that have ended count for nothing, though their remains are still in Redis.
func TestInspectTellsWhatIsGrantedFromWhatIsHeld(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, ctx := s.Client(t), t.Context()
	l := open(t, s.Client(t), lock.Options{Lease: time.Minute})
	granted := keys.Lock("", keys.Mutex, "granted")[0]
	rdb.HSet(ctx, granted, "o", "g:m:process:1", "x", int64(1e15), "l", 2000, "f", 7, "b", 7)
	info, err := l.Inspect(ctx, "granted")
	if err != nil || !info.Held || info.Holders != 0 || info.Fence != 7 || info.Remaining <= 0 {
		t.Errorf("granted: %+v, %v", info, err)
	}

	rw := l.RW("a")
	must(t)(rw.RLock(ctx))
	must(t)(rw.RLock(ctx))
	shares := keys.Lock("", keys.ReadWrite, "a")[3]
	rdb.ZAdd(ctx, shares, redis.Z{Member: "dead:1", Score: 1}, redis.Z{Member: "g:r:dead:1", Score: 2})
	redistest.Eventually(t, 30*time.Second, "two readers and a grant, which lasts for two seconds", func() bool {
		rdb.ZAdd(ctx, shares, redis.Z{Member: "g:r:process:1", Score: float64(rdb.Time(ctx).Val().Add(1900 * time.Millisecond).UnixMilli())})
		info, err := rw.Inspect(ctx)
		return err == nil && info.Held && info.Holders == 2 && info.Remaining > 0 && info.Remaining <= 2*time.Second
	})

	must(t)(l.Lock(ctx, "ended"))
	rdb.HSet(ctx, keys.Lock("", keys.Mutex, "ended")[0], "x", 1)
	if info, err := l.Inspect(ctx, "ended"); err != nil || info.Held || info.Holders != 0 || info.Remaining != 0 {
		t.Errorf("ended: %+v, %v", info, err)
	}
}

// How long the queue is says little: an entry each for two processes may be a moment old.
// A process that died while it waited must not be the one that has waited longest.
func TestInspectTellsForHowLongTheFirstHasWaited(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, ctx := s.Client(t), t.Context()
	l := open(t, s.Client(t), lock.Options{})
	held := must(t)(l.Lock(ctx, "a"))
	waits, leave := context.WithCancel(ctx)
	left := make(chan error, 1)
	other := open(t, s.Client(t), lock.Options{})
	go func() { _, err := other.Lock(waits, "a"); left <- err }()
	waiting(t, l, keys.Mutex, "a", 1)
	if info, err := l.Inspect(ctx, "a"); err != nil || info.Waiting != 1 || info.Longest <= 0 || info.Longest > time.Minute {
		t.Errorf("%+v, %v", info, err)
	}
	queue := keys.Lock("", keys.Mutex, "a")[1]
	ago := func(d time.Duration) float64 { return float64(rdb.Time(ctx).Val().Add(-d).UnixMicro()) }
	rdb.ZAdd(ctx, queue, redis.Z{Member: rdb.ZRange(ctx, queue, 0, 0).Val()[0], Score: ago(time.Hour)},
		redis.Z{Member: "m:dead:1", Score: ago(3 * time.Hour)})
	if info, err := l.Inspect(ctx, "a"); err != nil || info.Waiting != 2 || info.Longest < time.Hour || info.Longest > 2*time.Hour {
		t.Errorf("%+v, %v", info, err)
	}
	leave()
	if err := <-left; !errors.Is(err, lock.ErrNotAcquired) {
		t.Error(err)
	}
	unlock(t, held)
}
