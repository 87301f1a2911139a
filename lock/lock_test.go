package lock_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

func TestAnUncontendedPairIsTwoScripts(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := open(t, s.Client(t), lock.Options{})
	l.AskOnce()
	ctx := t.Context()
	pair := func() {
		lease, err := l.Lock(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Unlock(ctx); err != nil {
			t.Fatal(err)
		}
	}
	pair() // loads the scripts
	before := s.Calls("evalsha")
	const n = 50
	for range n {
		pair()
	}
	if got := s.Calls("evalsha") - before; got != 2*n {
		t.Errorf("%d scripts for %d pairs", got, n)
	}
	if s.Calls("eval") != 2 {
		t.Errorf("%d EVAL, want one for each script", s.Calls("eval"))
	}
}

func TestOneHolderAtATimeAndFencesGrow(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		lockers := []*lock.Locker{s.open(t, lock.Options{}), s.open(t, lock.Options{}), s.open(t, lock.Options{StrictFIFO: true})}
		var inside atomic.Int32
		var last int64
		var total int
		var all sync.WaitGroup
		const each, rounds = 8, 15
		for _, l := range lockers {
			for range each {
				all.Go(func() {
					for range rounds {
						err := l.Do(t.Context(), "a", func(_ context.Context, lease *lock.Lease) error {
							if inside.Add(1) != 1 {
								t.Error("two holders")
							}
							if lease.Fence() <= last {
								t.Errorf("fence %d after %d", lease.Fence(), last)
							}
							last = lease.Fence()
							total++
							inside.Add(-1)
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		if total != len(lockers)*each*rounds {
			t.Errorf("%d acquisitions", total)
		}
		t.Logf("%d acquisitions, %d scripts", total, s.scripts())
	})
}

// A script that waited for a connection while it held another would hang here.
func TestOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := open(t, s.Client(t, func(o *redis.Options) { o.PoolSize = 1 }), lock.Options{Lease: 10 * time.Second})
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			for range 5 {
				err := l.Do(t.Context(), "a", func(ctx context.Context, _ *lock.Lease) error {
					lease, err := l.RW("b").RLock(ctx)
					if err != nil {
						return err
					}
					return lease.Unlock(ctx)
				})
				if err != nil {
					t.Errorf("goroutine %d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
}

func TestTryLockTellsHowLongTheLockIsHeld(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		l := s.open(t, lock.Options{Lease: 20 * time.Second})
		lease, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.TryLock(t.Context(), "a")
		var held *lock.HeldError
		if !errors.As(err, &held) || !errors.Is(err, lock.ErrNotAcquired) {
			t.Fatalf("got %v", err)
		}
		if held.Name != "a" || held.Remaining <= 10*time.Second || held.Remaining > 20*time.Second || held.Waiting != 0 {
			t.Errorf("got %+v", held)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if lease, err = l.TryLock(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		_ = lease.Unlock(t.Context())
	})
}

func TestDoGivesBackOnErrorPanicAndGoexit(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		l := s.open(t, lock.Options{})
		mine := errors.New("mine")
		for name, fn := range map[string]func(){
			"error":  func() {},
			"panic":  func() { panic("fn") },
			"goexit": runtime.Goexit,
		} {
			done := make(chan error, 1)
			go func() {
				defer func() { _ = recover(); close(done) }()
				done <- l.Do(t.Context(), name, func(context.Context, *lock.Lease) error { fn(); return mine })
			}()
			if err := <-done; name == "error" && !errors.Is(err, mine) {
				t.Errorf("got %v", err)
			}
			if info, err := l.Inspect(t.Context(), name); err != nil || info.Held {
				t.Errorf("%s: %+v, %v", name, info, err)
			}
		}
	})
}

func TestBadInputIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	for _, o := range []lock.Options{
		{Lease: 30}, {Lease: -1}, {Lease: 99 * time.Millisecond}, {MaxHold: time.Second}, {MaxHold: -1},
		{Replicas: -1}, {ReplicaTimeout: time.Hour}, {Prefix: "a{b}"}, {Label: strings.Repeat("x", 257)},
	} {
		if _, err := lock.New(rdb, o); !errors.Is(err, lock.ErrConfig) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, none := range []redis.UniversalClient{(*redis.Client)(nil), (*redis.ClusterClient)(nil)} { // not the nil that New takes
		if _, err := lock.New(none, lock.Options{}); !errors.Is(err, lock.ErrConfig) {
			t.Errorf("%T: %v", none, err)
		}
	}
	l := open(t, rdb, lock.Options{})
	for _, name := range []string{"", strings.Repeat("x", 1025)} {
		_, err1 := l.Lock(ctx, name)
		_, err2 := l.TryLock(ctx, name)
		_, err3 := l.Inspect(ctx, name)
		_, err4 := l.With(lock.Options{Lease: time.Nanosecond}).Lock(ctx, "a")
		for _, err := range []error{err1, err2, err3, err4} {
			if !errors.Is(err, lock.ErrConfig) {
				t.Errorf("%.10q: %v", name, err)
			}
		}
	}
	if n := rdb.DBSize(ctx).Val(); n != 0 {
		t.Errorf("%d keys", n)
	}
}

func TestACancelledWaitLeavesAtOnceAndOutOfTheQueue(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		l := s.open(t, lock.Options{})
		lease, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		lag, begin := redistest.MeasureLag(t), time.Now()
		_, err = l.Lock(ctx, "a")
		if !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begin); took > lag.Allow(500*time.Millisecond) { // the lease has 10 s
			t.Errorf("it took %v", took)
		}
		redistest.Eventually(t, 20*time.Second, "the queue is empty", func() bool {
			info, _ := l.Inspect(t.Context(), "a")
			return info.Waiting == 0
		})
		// With a context that has ended; after 100 ms it goes on in the background.
		if err := lease.Unlock(ctx); err != nil && !errors.Is(err, lock.ErrUnavailable) {
			t.Error(err)
		}
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("second Unlock: %v", err)
		}
		redistest.Eventually(t, 2*time.Second, "it is free before its lease of 10 s ends", func() bool {
			lease, err = l.TryLock(t.Context(), "a")
			return err == nil
		})
		_ = lease.Unlock(t.Context())
	})
}
