package lock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A tenant is a hook that puts a prefix to the keys of scripts.
type tenant struct{ rewritten atomic.Int64 }

func (h *tenant) rewrite(cmd redis.Cmder) {
	if name := cmd.Name(); name != "eval" && name != "evalsha" {
		return
	}
	args := cmd.Args()
	for i := 3; i < 3+args[2].(int); i++ {
		if key := args[i].(string); !strings.HasPrefix(key, "tenant:") {
			args[i] = "tenant:" + key
		}
	}
	h.rewritten.Add(1)
}

// Callers with little time, those with much, and those who ask together took different
// ways to Redis once, and with such a hook each way had a lock of its own.
func TestAHookThatRewritesKeysDoesNotDoubleALock(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, hook := s.Client(t), &tenant{}
	rdb.AddHook(redistest.EachCommand(hook.rewrite))
	l := open(t, rdb, lock.Options{Lease: time.Minute})
	held, err := l.TryLock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	for _, patience := range []time.Duration{time.Hour, 90 * time.Millisecond} { // promptTime is between them
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			if lease, err := l.TryLock(ctx, "a"); err == nil {
				t.Errorf("with %v left the lock was granted twice, fences %d and %d", patience, held.Fence(), lease.Fence())
			} else if !errors.Is(err, lock.ErrNotAcquired) && ctx.Err() == nil {
				t.Error(err)
			}
			cancel()
		}
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if left := s.Client(t).Keys(t.Context(), "levee:*").Val(); len(left) > 0 {
		t.Errorf("keys that the hook has not rewritten: %q", left)
	}
	if hook.rewritten.Load() < 42 {
		t.Errorf("the hook saw %d scripts, want 42", hook.rewritten.Load())
	}
}

// What a hook panics with is logged, and neither takes the process down nor keeps a lock.
func TestAHookThatPanicsIsContained(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		var log redistest.Log
		var called atomic.Int32
		fail := func() { called.Add(1); panic("the hook") }
		l := s.open(t, lock.Options{Lease: time.Minute, Logger: log.Logger(), Hooks: lock.Hooks{
			Acquired: func(string, time.Duration, bool) { fail() },
			Released: func(string, time.Duration) { fail() },
			Lost:     func(string, error) { fail() },
		}})
		unlock(t, must(t)(l.Lock(t.Context(), "a")), must(t)(l.LockAll(t.Context(), "b", "c")))
		lost := must(t)(l.Lock(t.Context(), "a"))
		if forced, err := l.ForceUnlock(t.Context(), "a"); !forced || err != nil {
			t.Fatal(forced, err)
		}
		_ = lost.Check(t.Context())
		redistest.Eventually(t, 30*time.Second, "each was called", func() bool { return called.Load() == 3+3+1+1 })
		log.Await(t, "a hook panicked")
	})
}

// A Check that hears that the lease was given back meanwhile has lost nothing.
func TestACheckBesideAnUnlockIsNoLoss(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	var holds atomic.Bool
	held, release := make(chan struct{}), make(chan struct{})
	rdb.AddHook(redistest.EachCommand(func(cmd redis.Cmder) {
		if args := cmd.Args(); len(args) > 1 && args[1] == lock.RenewScript.Hash() && holds.CompareAndSwap(true, false) {
			close(held)
			<-release
		}
	}))
	lost := make(chan error, 1)
	l := open(t, rdb, lock.Options{Lease: time.Minute, Hooks: lock.Hooks{Lost: func(_ string, err error) { lost <- err }}})
	redistest.Eventually(t, 30*time.Second, "the subscription stands, and nothing is renewed", l.Hears)
	gate := must(t)(l.Lock(t.Context(), "a"))
	holds.Store(true)
	done := make(chan error)
	go func() { done <- gate.Check(context.Background()) }()
	<-held
	unlock(t, gate)
	close(release)
	if err := <-done; !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("Check: %v", err)
	}
	if n := l.Stats().Losses; n != 0 || len(lost) > 0 {
		t.Errorf("%d losses of a lease that was given back", n)
	}
}
