package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// Every call that wanted a lock ends as one of four, and Held and Waiting come back to 0.
func TestStatsCountWhatBecameOfEachCall(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		here, there := s.open(t, lock.Options{}), s.open(t, lock.Options{})
		held := must(t)(here.LockAll(ctx, "a", "b"))
		if n := here.Stats(); n.Held != 2 || n.Acquired != 2 || n.Waits != 0 {
			t.Errorf("after LockAll of two: %+v", n)
		}
		if _, err := there.TryLock(ctx, "a"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Error(err)
		}
		short, cancel := context.WithCancel(ctx)
		gaveUp := make(chan error)
		go func() { _, err := there.Lock(short, "a"); gaveUp <- err }()
		waiting(t, here, keys.Mutex, "a", 1)
		if n := there.Stats(); n.Waiting != 1 || n.Held != 0 {
			t.Errorf("while one waits: %+v", n)
		}
		cancel()
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		got := make(chan *lock.Lease)
		go func() { got <- must(t)(there.Lock(ctx, "b")) }()
		waiting(t, here, keys.Mutex, "b", 1)
		unlock(t, held)
		unlock(t, <-got)
		n := there.Stats()
		if n.Refused != 1 || n.GaveUp != 1 || n.Acquired != 1 || n.Failed != 0 || n.Waits != 2 || n.HandOffs != 1 || n.WaitTime <= 0 {
			t.Errorf("after a refusal, one who gave up and a hand-off: %+v", n)
		}
		if n.Held+n.Waiting+here.Stats().Held != 0 {
			t.Errorf("somebody holds or waits: %+v, %+v", n, here.Stats())
		}
		if s.Server == nil {
			return // nobody else writes there
		}
		s.Client(t).Set(ctx, keys.Lock("", keys.Mutex, "c")[0], "not a lock", time.Minute)
		if _, err := here.TryLock(ctx, "c"); !errors.Is(err, lock.ErrConflict) {
			t.Error(err)
		}
		if n := here.Stats(); n.Failed != 1 {
			t.Errorf("after a conflict: %+v", n)
		}
	})
}

func TestStatsCountRenewalsAndLosses(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := open(t, s.Client(t), lock.Options{Lease: 4 * time.Second})
	lease := must(t)(l.Lock(t.Context(), "a"))
	redistest.Eventually(t, 30*time.Second, "it is renewed", func() bool { return l.Stats().Renewals > 1 })
	s.Kill()
	<-lease.Context().Done()
	if n := l.Stats(); n.Losses != 1 || n.RenewalErrors == 0 || n.Held != 0 {
		t.Errorf("after a loss: %+v", n)
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Error(err)
	}
	s.Restart() // Close need not wait for it
	if n := l.Stats().Losses; n != 1 {
		t.Errorf("%d losses are counted of one", n)
	}
}
