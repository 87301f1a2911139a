package guard_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/guard"
)

func TestDegradedCallsHaveASmallerLimitWithinTheWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 8, MaxDegraded: 2, QueueTimeout: -1})
		release := make(chan struct{})
		hold := func(context.Context) error { <-release; return nil }
		for range 2 {
			go func() { _ = b.DoDegraded(context.Background(), hold) }()
		}
		synctest.Wait()
		if err := b.DoDegraded(t.Context(), succeed); !errors.Is(err, guard.ErrLimited) {
			t.Errorf("third degraded call: got %v, want ErrLimited", err)
		}
		if err := b.Do(t.Context(), succeed); err != nil {
			t.Errorf("normal call: got %v, want nil", err)
		}
		occupy(b, 6, release)
		if err := b.Do(t.Context(), succeed); !errors.Is(err, guard.ErrLimited) {
			t.Errorf("ninth call: got %v, want ErrLimited: degraded ones count in the whole", err)
		}
		close(release)
		synctest.Wait()
		for range 3 { // a refusal at the second limit must give back the first
			if err := b.DoDegraded(t.Context(), succeed); err != nil {
				t.Errorf("got %v, want nil", err)
			}
		}
	})
}

func TestADegradedCallRefusedByTheWholeGivesItsPlaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 4, MaxDegraded: 1, QueueTimeout: -1})
		release := make(chan struct{})
		occupy(b, 4, release)
		for range 3 {
			if err := b.DoDegraded(t.Context(), succeed); !errors.Is(err, guard.ErrLimited) {
				t.Errorf("got %v, want ErrLimited", err)
			}
		}
		close(release)
		synctest.Wait()
		if err := b.DoDegraded(t.Context(), succeed); err != nil {
			t.Errorf("got %v, want nil", err)
		}
	})
}

func TestADegradedCallWaitsForBothPlacesWithinOneQueueTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 4, MaxDegraded: 1, QueueTimeout: 200 * time.Millisecond})
		release := make(chan struct{})
		go func() {
			_ = b.DoDegraded(context.Background(), func(context.Context) error { time.Sleep(150 * time.Millisecond); return nil })
		}()
		occupy(b, 3, release)
		time.AfterFunc(time.Millisecond, func() { // takes over the place in the whole that the first one leaves
			_ = b.Do(context.Background(), func(context.Context) error { <-release; return nil })
		})
		time.Sleep(2 * time.Millisecond)
		begin := time.Now()
		err := b.DoDegraded(t.Context(), succeed)
		if !errors.Is(err, guard.ErrLimited) || time.Since(begin) != 200*time.Millisecond {
			t.Errorf("got %v after %v, want ErrLimited after 200ms in all", err, time.Since(begin))
		}
		close(release)
	})
}

func TestABackgroundCallDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 4, QueueTimeout: time.Second})
		release := make(chan struct{})
		occupy(b, 4, release)
		begin := time.Now()
		if err := b.DoBackground(t.Context(), succeed); !errors.Is(err, guard.ErrLimited) || time.Since(begin) != 0 {
			t.Errorf("got %v after %v, want ErrLimited at once", err, time.Since(begin))
		}
		close(release)
		synctest.Wait()
		if err := b.DoBackground(t.Context(), succeed); err != nil {
			t.Errorf("got %v, want nil", err)
		}
	})
}

func TestBackgroundCallsNeverStandBeforeOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 4, QueueTimeout: time.Second})
		release := make(chan struct{})
		hold := func(context.Context) error { <-release; return nil }
		for range 2 {
			go func() { _ = b.DoBackground(context.Background(), hold) }()
		}
		synctest.Wait()
		if err := b.DoBackground(t.Context(), succeed); !errors.Is(err, guard.ErrLimited) {
			t.Errorf("third of four in the background: got %v, want ErrLimited", err)
		}
		occupy(b, 2, release)
		var waited error
		var waiter sync.WaitGroup
		waiter.Go(func() { waited = b.Do(context.Background(), succeed) })
		synctest.Wait()
		began := time.Now()
		if err := b.DoBackground(t.Context(), succeed); !errors.Is(err, guard.ErrLimited) || time.Since(began) > 0 {
			t.Errorf("with all places taken: got %v after %v, want ErrLimited at once", err, time.Since(began))
		}
		close(release)
		waiter.Wait()
		if waited != nil {
			t.Errorf("the one that queued: %v", waited)
		}
		synctest.Wait()
		for range 3 {
			if err := b.DoBackground(t.Context(), succeed); err != nil {
				t.Errorf("got %v, want nil", err)
			}
		}
	})
}

// Catches an estimate by MaxConcurrent alone: sixteen times as many degraded calls would
// wait as can be served in time.
func TestADegradedCallIsRefusedByTheQueueOfItsOwnLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 16, MaxDegraded: 1, QueueTimeout: time.Second})
		learn(b, 64, 100*time.Millisecond)
		var calls sync.WaitGroup
		refused := 0
		for range 20 {
			calls.Go(func() {
				began := time.Now()
				if err := b.DoDegraded(context.Background(), takes(100*time.Millisecond)); err != nil {
					if refused++; time.Since(began) > 0 {
						t.Errorf("%v after %v", err, time.Since(began))
					}
				}
			})
			synctest.Wait()
		}
		calls.Wait()
		if refused < 10 || refused > 12 {
			t.Errorf("%d of 20 were refused, want those for whom a second is too short", refused)
		}
	})
}

// A hundred degraded calls wait for their one place, which is not in the way of others.
// Catches an estimate that counts them all as ahead of a normal call.
func TestDegradedCallsThatWaitAreNotInTheWayOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 4, MaxDegraded: 1, QueueTimeout: 20 * time.Second})
		learn(b, 64, 100*time.Millisecond)
		var calls sync.WaitGroup
		for range 100 {
			calls.Go(func() { _ = b.DoDegraded(context.Background(), takes(100*time.Millisecond)) })
		}
		for range 3 {
			calls.Go(func() { _ = b.Do(context.Background(), takes(100*time.Millisecond)) })
		}
		synctest.Wait()
		if took, err := within(b, time.Second, succeed); err != nil {
			t.Errorf("got %v after %v", err, took)
		}
		calls.Wait()
	})
}
