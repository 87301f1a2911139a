package guard_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/guard"
)

func takes(d time.Duration) func(context.Context) error {
	return func(context.Context) error { time.Sleep(d); return nil }
}

// within makes a call whose caller waits for patience, and returns its error and when
// it came.
func within(b *guard.Breaker, patience time.Duration, fn func(context.Context) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	began := time.Now()
	err := b.Do(ctx, fn)
	return time.Since(began), err
}

// servesABurst checks that none of 100 calls, of 5 ms each and with a second of time, is refused.
func servesABurst(t *testing.T, b *guard.Breaker) {
	t.Helper()
	var calls sync.WaitGroup
	for range 100 {
		calls.Go(func() {
			if took, err := within(b, time.Second, takes(5*time.Millisecond)); err != nil {
				t.Errorf("got %v after %v", err, took)
			}
		})
	}
	calls.Wait()
}

// learn has b make calls that take so long, one at a time.
func learn(b *guard.Breaker, calls int, d time.Duration) {
	for range calls {
		_ = b.Do(context.Background(), takes(d))
	}
}

// Catches a queue that does not know its pace: the caller would wait in vain for all of
// its deadline.
func TestACallWhoseTurnCannotComeInTimeIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{Name: "catalogue", MaxConcurrent: 1})
		learn(b, 64, 100*time.Millisecond)
		var calls sync.WaitGroup
		calls.Go(func() { _ = b.Do(context.Background(), takes(100*time.Millisecond)) })
		synctest.Wait()
		took, err := within(b, 190*time.Millisecond, succeed)
		if !errors.Is(err, guard.ErrLimited) || took > 0 {
			t.Errorf("got %v after %v, want ErrLimited at once", err, took)
		}
		want := "breaker: too many calls: catalogue: the 1 places of MaxConcurrent are taken, and the turn of this call would come too late"
		if err.Error() != want {
			t.Errorf("got  %q\nwant %q", err, want)
		}
		if took, err := within(b, 250*time.Millisecond, succeed); err != nil || took != 100*time.Millisecond {
			t.Errorf("with more time: got %v after %v", err, took)
		}
		calls.Wait()
		if s := b.Stats(); s.Shed != 1 || s.RefusedLimited != 1 || s.Waited != 1 || s.WaitTime != 100*time.Millisecond || s.Service < 90*time.Millisecond {
			t.Errorf("got %+v", s)
		}
	})
}

// A QueueTimeout that was given is a bound also for callers who have more time. Catches one
// who waits for it in vain, as it can be reckoned at once.
func TestACallWhoseTurnComesAfterQueueTimeoutIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, QueueTimeout: 250 * time.Millisecond})
		learn(b, 64, 100*time.Millisecond)
		var calls sync.WaitGroup
		for range 2 {
			calls.Go(func() { _ = b.Do(context.Background(), takes(100*time.Millisecond)) })
			synctest.Wait()
		}
		if took, err := within(b, 220*time.Millisecond, succeed); !errors.Is(err, guard.ErrLimited) || took > 0 {
			t.Errorf("with a deadline: got %v after %v, want ErrLimited at once", err, took)
		}
		calls.Go(func() { _, _ = within(b, time.Minute, takes(100*time.Millisecond)) })
		synctest.Wait()
		if took, err := within(b, time.Minute, succeed); !errors.Is(err, guard.ErrLimited) || took > 0 {
			t.Errorf("with more time than QueueTimeout: got %v after %v, want ErrLimited at once", err, took)
		}
		calls.Wait()
	})
}

// A degraded call that waits takes a place of the whole before those who come after it. Catches
// an estimate that leaves it out, or counts it in a caller's favour.
func TestDegradedCallsThatWaitAreAheadOfWhoComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 2, MaxDegraded: 1})
		learn(b, 64, 100*time.Millisecond)
		var calls sync.WaitGroup
		calls.Go(func() { _ = b.Do(context.Background(), takes(100*time.Millisecond)) })
		for range 2 {
			calls.Go(func() { _ = b.DoDegraded(context.Background(), takes(100*time.Millisecond)) })
			synctest.Wait()
		}
		// Three are ahead of two places of 100 ms.
		if took, err := within(b, 240*time.Millisecond, succeed); !errors.Is(err, guard.ErrLimited) || took > 0 {
			t.Errorf("with 240 ms: got %v after %v, want ErrLimited at once", err, took)
		}
		if took, err := within(b, 280*time.Millisecond, succeed); err != nil {
			t.Errorf("with 280 ms: got %v after %v", err, took)
		}
		calls.Wait()
	})
}

// A place that is free is taken, however little time the caller has: otherwise a source
// that takes longer than any caller waits would never be asked.
func TestAFreePlaceIsTakenWhateverTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1})
		learn(b, 64, time.Second)
		ran := false
		if _, err := within(b, time.Millisecond, func(context.Context) error { ran = true; return nil }); err != nil || !ran {
			t.Errorf("got %v, ran: %v", err, ran)
		}
	})
}

// Catches an estimate by how long the functions have run: a few that hang would have all
// others refused.
func TestAFewFunctionsThatHangDoNotStopTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 8})
		learn(b, 100, 10*time.Millisecond)
		for range 3 {
			go func() { _ = b.Do(context.Background(), obey) }()
		}
		time.Sleep(3 * time.Second)
		var calls sync.WaitGroup
		for range 50 {
			calls.Go(func() {
				if took, err := within(b, 200*time.Millisecond, takes(10*time.Millisecond)); err != nil {
					t.Errorf("got %v after %v", err, took)
				}
			})
		}
		calls.Wait()
		time.Sleep(5 * time.Second)
	})
}

// The first functions of a burst may be slow for reasons of their own. Catches a mean of a
// few that refuses calls: two thousand cold keys on a busy machine were shed by the time
// that the first loads took.
func TestAMeanOfAFewFunctionsRefusesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1})
		learn(b, 63, 4*time.Second)
		servesABurst(t, b)
	})
}

// A breaker that has been open knows what calls took of a source that was failing. Catches a
// mean that outlives this: who comes when the source is well again would be refused by it.
func TestWhatFunctionsTookBeforeTheOpeningIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, MinRequests: 100, Window: time.Hour})
		for b.State() == guard.Closed {
			_ = b.Do(t.Context(), obey)
		}
		time.Sleep(6 * time.Second)
		if err := b.Do(t.Context(), takes(5*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		servesABurst(t, b)
	})
}

// A function that ignores the end of its context returns after an hour. Catches a mean that
// takes it at its word: one of them is as much as 64 × 56 seconds.
func TestAFunctionThatWasLeftBehindCountsAsLongAsItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, FailureRatio: -1})
		learn(b, 100, 10*time.Millisecond)
		_ = b.Do(t.Context(), takes(time.Hour))
		time.Sleep(time.Hour)
		if got := b.Stats().Service; got > 100*time.Millisecond {
			t.Errorf("the mean is %v", got)
		}
	})
}

// The estimate follows a pace that becomes ten times faster, and then ten times slower.
func TestTheEstimateFollowsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 16})
		for _, service := range []time.Duration{500, 50, 500, 5} {
			service *= time.Millisecond
			var calls sync.WaitGroup
			for range 16 * 30 {
				calls.Go(func() { _ = b.Do(context.Background(), takes(service)) })
				time.Sleep(service / 14) // somewhat more than can be served
			}
			if got := b.Stats().Service; got < service*8/10 || got > service*13/10 {
				t.Errorf("after calls of %v the estimate is %v", service, got)
			}
			calls.Wait()
		}
	})
}

// A patient is a context that speaks for several callers: its deadline moves as they come.
type patient struct {
	context.Context
	mu       sync.Mutex
	deadline time.Time
}

func (c *patient) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadline, !c.deadline.IsZero()
}

// Catches a queue that waits by the deadline that it was given at first: a caller with more
// time has come since, and the end of the context is what ends the waiting.
func TestADeadlineThatMovesIsNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, Timeout: 30 * time.Second})
		learn(b, 64, 100*time.Millisecond)
		var calls sync.WaitGroup
		calls.Go(func() { _ = b.Do(context.Background(), takes(20*time.Second)) })
		synctest.Wait()
		c := &patient{Context: t.Context(), deadline: time.Now().Add(300 * time.Millisecond)}
		calls.Go(func() {
			p, err := b.Acquire(c, guard.Normal)
			if err != nil {
				t.Errorf("got %v, but there is a caller with a minute", err)
			}
			p.Release()
		})
		synctest.Wait()
		c.mu.Lock()
		c.deadline = time.Now().Add(time.Minute)
		c.mu.Unlock()
		calls.Wait()
	})
}

func TestTheDegradedLimitIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxDegraded: 1, QueueTimeout: -1})
		release := make(chan struct{})
		go func() { _ = b.DoDegraded(context.Background(), func(context.Context) error { <-release; return nil }) }()
		synctest.Wait()
		if err := b.DoDegraded(t.Context(), succeed); err == nil || !strings.Contains(err.Error(), "the 1 places of MaxDegraded are taken") {
			t.Errorf("got %v", err)
		}
		close(release)
	})
}

// Calls of all classes run within MaxConcurrent. Catches a text that names the limit of the
// class, with places that are free.
func TestARefusalNamesTheLimitThatWasReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{MaxConcurrent: 1, MaxDegraded: -1, MaxBackground: -1, QueueTimeout: time.Second})
		release := make(chan struct{})
		occupy(b, 1, release)
		for _, class := range []guard.Class{guard.Normal, guard.Degraded, guard.Background} {
			if _, err := b.Acquire(t.Context(), class); err == nil || !strings.Contains(err.Error(), "the 1 places of MaxConcurrent are taken") {
				t.Errorf("class %d: %v", class, err)
			}
		}
		close(release)
	})
}
