package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

var named = []error{
	lock.ErrNotAcquired, lock.ErrLost, lock.ErrNotHeld, lock.ErrUnavailable, lock.ErrNotReplicated, lock.ErrDeadlock,
	lock.ErrConflict, lock.ErrBadToken, lock.ErrConfig, lock.ErrClosed,
}

func isNamed(err error) bool {
	for _, name := range named {
		if errors.Is(err, name) {
			return true
		}
	}
	return false
}

// While Redis hangs and the caller's time ends, each call returns an error of the package, and one that tells
// of the context.
func TestEachErrorIsOneOfThePackage(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := open(t, s.Client(t), lock.Options{Lease: time.Minute})
	taken := func(name string) *lock.Lease {
		lease, err := l.Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	held, over := taken("held"), taken("over")
	token, err := taken("detached").Detach(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	defer s.Cont()
	for name, call := range map[string]func(ctx context.Context) error{
		"Lock":    func(ctx context.Context) error { _, err := l.Lock(ctx, "a"); return err },
		"TryLock": func(ctx context.Context) error { _, err := l.TryLock(ctx, "a"); return err },
		"LockAll": func(ctx context.Context) error { _, err := l.LockAll(ctx, "a", "b"); return err },
		"RLock":   func(ctx context.Context) error { _, err := l.RW("a").RLock(ctx); return err },
		"Acquire": func(ctx context.Context) error { _, err := l.Semaphore("a", 2).Acquire(ctx); return err },
		"LockAny": func(ctx context.Context) error { _, _, err := l.Striped("a", 2).LockAny(ctx); return err },
		"Do": func(ctx context.Context) error {
			return l.Do(ctx, "a", func(context.Context, *lock.Lease) error { return nil })
		},
		"Once": func(ctx context.Context) error {
			_, err := l.Once(ctx, "a", time.Minute, func(context.Context) error { return nil })
			return err
		},
		"Inspect":     func(ctx context.Context) error { _, err := l.Inspect(ctx, "held"); return err },
		"Check":       l.Check,
		"ForceUnlock": func(ctx context.Context) error { _, err := l.ForceUnlock(ctx, "held"); return err },
		"Attach":      func(ctx context.Context) error { _, err := l.Attach(ctx, token); return err },
		"Release":     func(ctx context.Context) error { return l.Release(ctx, token) },
		"Lease.Check": held.Check,
		"Detach":      func(ctx context.Context) error { _, err := over.Detach(ctx, time.Minute); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := call(ctx); !isNamed(err) {
				t.Errorf("%v is no error of the package", err)
			} else if name != "Check" && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v does not tell of the deadline", err)
			}
		})
	}
}
