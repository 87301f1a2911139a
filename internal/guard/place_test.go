package guard_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/guard"
)

// The two steps apart: nothing runs before Run, and until then the place is the caller's.
// Catches an Acquire that returns while the call still waits.
func TestAcquireReturnsWhenTheCallHasItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1})
		release := make(chan struct{})
		occupy(b, 1, release)
		var steps []string
		go func() {
			p, err := b.Acquire(t.Context(), guard.Normal)
			if err != nil || b.HasPlace() {
				t.Errorf("got %v, and a place is free: %v", err, b.HasPlace())
			}
			defer p.Release()
			steps = append(steps, "acquired")
			if err := p.Run(t.Context(), func(context.Context) error { steps = append(steps, "run"); return nil }); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if len(steps) > 0 {
			t.Errorf("%v before there was a place", steps)
		}
		close(release)
		synctest.Wait()
		if len(steps) != 2 || steps[0] != "acquired" || steps[1] != "run" {
			t.Errorf("got %v, want acquired and run", steps)
		}
		conserved(t, b, 2)
	})
}

// Catches a Release that keeps the place, one that gives it back twice, a verdict on a
// source that was not asked, and a mean that learns from it.
func TestAPlaceThatIsReleasedIsFreeOnceAndSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, MinRequests: 1})
		for range 3 {
			p, err := b.Acquire(t.Context(), guard.Normal)
			if err != nil || b.HasPlace() {
				t.Fatalf("got %v, and a place is free: %v", err, b.HasPlace())
			}
			time.Sleep(time.Minute)
			p.Release()
			p.Release()
			if err := p.Run(t.Context(), fail); !errors.Is(err, guard.ErrLimited) {
				t.Errorf("Run after Release: %v", err)
			}
		}
		if s := b.Stats(); s != (guard.Stats{Limit: 1}) || !b.HasPlace() {
			t.Errorf("got %+v, want nothing", s)
		}
		release := make(chan struct{})
		occupy(b, 1, release)
		if b.HasPlace() {
			t.Error("there are two places")
		}
		close(release)
		(*guard.Place)(nil).Release()
	})
}

// A deferred Release comes after the Run. Catches one that frees the place of a function
// that was left behind, or of one that another caller has by then.
func TestReleaseAfterRunDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, Timeout: time.Second})
		p, err := b.Acquire(t.Context(), guard.Normal)
		if err != nil {
			t.Fatal(err)
		}
		hangs := make(chan struct{})
		if err := p.Run(t.Context(), func(context.Context) error { <-hangs; return nil }); !errors.Is(err, guard.ErrTimeout) {
			t.Errorf("got %v", err)
		}
		p.Release()
		if b.HasPlace() {
			t.Error("the place of a function that runs is free")
		}
		if err := p.Run(t.Context(), succeed); !errors.Is(err, guard.ErrLimited) {
			t.Errorf("a second Run: %v", err)
		}
		close(hangs)
		synctest.Wait()
		release := make(chan struct{})
		occupy(b, 1, release)
		p.Release()
		if b.HasPlace() {
			t.Error("the place of another is free")
		}
		close(release)
	})
}

// Half-open, one call may try. Catches a call that takes this right and tries nothing.
func TestAPlaceThatIsReleasedDoesNotTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{})
		trip(t, b)
		time.Sleep(6 * time.Second)
		p, err := b.Acquire(t.Context(), guard.Normal)
		if err != nil {
			t.Fatal(err)
		}
		p.Release()
		if err := b.Do(t.Context(), succeed); err != nil || b.State() != guard.Closed {
			t.Errorf("got %v and %v, want a success that closes it", err, b.State())
		}
	})
}

// The breaker opens between the two steps. Catches a function that runs all the same.
func TestRunAsksAgainWhetherTheBreakerIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 8})
		p, err := b.Acquire(t.Context(), guard.Normal)
		if err != nil {
			t.Fatal(err)
		}
		trip(t, b)
		if err := p.Run(t.Context(), succeed); err != guard.ErrOpen {
			t.Errorf("got %v, want ErrOpen", err)
		}
		synctest.Wait()
		if s := b.Stats(); s.Running != 0 || s.Successes != 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// Catches a Run whose caller has left in its place: the function would be called for nobody.
func TestARunWithAContextThatHasEndedGivesThePlaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1})
		ctx, cancel := context.WithCancel(t.Context())
		p, err := b.Acquire(ctx, guard.Normal)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := p.Run(ctx, fail); !errors.Is(err, context.Canceled) || !b.HasPlace() {
			t.Errorf("got %v, and a place is free: %v", err, b.HasPlace())
		}
		conserved(t, b, 1)
	})
}

// Catches a call that goes on to wait when its context has ended, and one that keeps its
// place in the line: nobody would take the next place.
func TestACallWhoseContextEndsLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1})
		release := make(chan struct{})
		occupy(b, 1, release)
		ctx, cancel := context.WithCancelCause(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := b.Acquire(ctx, guard.Normal)
			left <- err
		}()
		synctest.Wait()
		occupy(b, 1, release) // behind it
		cancel(errDeserted)
		if err := <-left; !errors.Is(err, guard.ErrLimited) || !errors.Is(err, context.Canceled) || !errors.Is(err, errDeserted) {
			t.Errorf("got %v, want ErrLimited with the end of the context and its cause", err)
		}
		if s := b.Stats(); s.Waiting != 1 || s.RefusedLimited != 0 || s.Left != 1 {
			t.Errorf("got %+v, want one that waits and one that left", s)
		}
		close(release)
		synctest.Wait()
		conserved(t, b, 3)
	})
}

var errDeserted = errors.New("all have left")

// For a caller who has something to fall back to. Catches one that waits, and one that takes
// no place that is free.
func TestTryAcquireDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxDegraded: 1})
		first, err := b.TryAcquire(t.Context(), guard.Degraded)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := b.TryAcquire(t.Context(), guard.Degraded); !errors.Is(err, guard.ErrLimited) || time.Since(began) > 0 {
			t.Errorf("got %v after %v, want ErrLimited at once", err, time.Since(began))
		}
		first.Release()
		second, err := b.TryAcquire(t.Context(), guard.Degraded)
		if err != nil {
			t.Errorf("with a free place: %v", err)
		}
		second.Release()
	})
}
