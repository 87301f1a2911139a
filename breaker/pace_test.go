package breaker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/breaker"
)

func takes(d time.Duration) func(context.Context) error {
	return func(context.Context) error { time.Sleep(d); return nil }
}

// within makes a call whose caller waits for patience, and returns its error and when
// it came.
func within(b *breaker.Breaker, patience time.Duration, fn func(context.Context) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	began := time.Now()
	err := b.Do(ctx, fn)
	return time.Since(began), err
}

// learn has b make calls that take so long, one at a time.
func learn(b *breaker.Breaker, calls int, d time.Duration) {
	for range calls {
		_ = b.Do(context.Background(), takes(d))
	}
}

// Catches a queue that does not know its pace: the caller would wait in vain for all of
// its deadline.
func TestACallWhoseTurnCannotComeInTimeIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{Name: "catalogue", MaxConcurrent: 1})
		learn(b, 1, 100*time.Millisecond)
		var calls sync.WaitGroup
		calls.Go(func() { _ = b.Do(context.Background(), takes(100*time.Millisecond)) })
		synctest.Wait()
		took, err := within(b, 190*time.Millisecond, succeed)
		if !errors.Is(err, breaker.ErrLimited) || took > 0 {
			t.Errorf("got %v after %v, want ErrLimited at once", err, took)
		}
		want := "breaker: too many calls: catalogue: the 1 places of MaxConcurrent are taken and 0 calls wait; this one would wait for about 100ms and take 100ms, and has 190ms"
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

// A place that is free is taken, however little time the caller has: otherwise a source
// that takes longer than any caller waits would never be asked.
func TestAFreePlaceIsTakenWhateverTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{MaxConcurrent: 1})
		learn(b, 1, time.Second)
		ran := false
		if _, err := within(b, time.Millisecond, func(context.Context) error { ran = true; return nil }); err != nil || !ran {
			t.Errorf("got %v, ran: %v", err, ran)
		}
	})
}

// Without the ages of the functions that run, nothing is known of functions that hang
// until the first of them times out: all who come until then would wait in vain.
func TestFunctionsThatHangAreNoticedBeforeTheyTimeOut(t *testing.T) {
	for _, known := range []int{0, 100} { // without and with a sample
		synctest.Test(t, func(t *testing.T) {
			b := newBreaker(t, breaker.Options{MaxConcurrent: 8, FailureRatio: -1})
			learn(b, known, 10*time.Millisecond)
			for range 8 {
				go func() { _ = b.Do(context.Background(), obey) }()
			}
			time.Sleep(600 * time.Millisecond)
			if took, err := within(b, time.Second, succeed); !errors.Is(err, breaker.ErrLimited) || took > 0 {
				t.Errorf("got %v after %v, want ErrLimited at once", err, took)
			}
			time.Sleep(5 * time.Second)
		})
	}
}

// Catches a mean of the ages: a few functions that hang would have all others refused.
func TestAFewFunctionsThatHangDoNotStopTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{MaxConcurrent: 8})
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

// Catches an estimate that is made only once, when a call comes: those who were let in
// at the old pace would wait for all of their deadline.
func TestCallsThatWaitHearWhenItHasBecomeHopeless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{MaxConcurrent: 4})
		learn(b, 100, 10*time.Millisecond)
		var calls sync.WaitGroup
		refused := 0
		var mu sync.Mutex
		for range 400 { // a second of work at the old pace
			calls.Go(func() {
				took, err := within(b, 4*time.Second, takes(200*time.Millisecond))
				mu.Lock()
				defer mu.Unlock()
				if errors.Is(err, breaker.ErrLimited) && took < 2*time.Second {
					refused++
				}
			})
		}
		calls.Wait()
		if refused < 200 || refused > 330 { // 4 seconds are enough for 80
			t.Errorf("%d of 400 were refused", refused)
		}
	})
}

// The estimate follows a pace that becomes ten times faster, and then ten times slower.
func TestTheEstimateFollowsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{MaxConcurrent: 16})
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

// crowd is callers whose deadline may change and who may leave.
type crowd struct {
	mu       sync.Mutex
	deadline time.Time
	left     chan struct{}
}

func (c *crowd) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadline, !c.deadline.IsZero()
}
func (c *crowd) Done() <-chan struct{} { return c.left }
func (c *crowd) Err() error            { return errDeserted }

var errDeserted = errors.New("all have left")

// Catches a queue that looks at the call's own context only.
func TestACallThatNobodyWaitsForGivesUpItsPlaceInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{MaxConcurrent: 1})
		release := make(chan struct{})
		occupy(b, 1, release)
		c := &crowd{left: make(chan struct{})}
		time.AfterFunc(20*time.Millisecond, func() { close(c.left) })
		began := time.Now()
		err := b.Run(t.Context(), breaker.Call{For: c}, succeed)
		if took := time.Since(began); !errors.Is(err, breaker.ErrLimited) || !errors.Is(err, errDeserted) || took != 20*time.Millisecond {
			t.Errorf("got %v after %v", err, took)
		}
		close(release)
		synctest.Wait()
		// One that runs goes on.
		if err := b.Run(t.Context(), breaker.Call{For: c}, takes(time.Second)); err != nil {
			t.Errorf("with a free place: %v", err)
		}
		if s := b.Stats(); s.Left != 1 || s.Waiting != 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// Catches a queue that asks for the deadline only once: a caller with more time has come
// since.
func TestTheLatestDeadlineCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{MaxConcurrent: 1})
		learn(b, 1, 100*time.Millisecond)
		var calls sync.WaitGroup
		calls.Go(func() { _ = b.Do(context.Background(), takes(time.Second)) })
		synctest.Wait()
		c := &crowd{left: make(chan struct{}), deadline: time.Now().Add(300 * time.Millisecond)}
		calls.Go(func() {
			if err := b.Run(context.Background(), breaker.Call{For: c}, succeed); err != nil {
				t.Errorf("got %v, but there is a caller with ten seconds", err)
			}
		})
		synctest.Wait()
		c.mu.Lock()
		c.deadline = time.Now().Add(10 * time.Second)
		c.mu.Unlock()
		calls.Wait()
	})
}

func TestTheDegradedLimitIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{MaxDegraded: 1, QueueTimeout: -1})
		release := make(chan struct{})
		go func() { _ = b.DoDegraded(context.Background(), func(context.Context) error { <-release; return nil }) }()
		synctest.Wait()
		if err := b.DoDegraded(t.Context(), succeed); err == nil || !strings.Contains(err.Error(), "the 1 places of MaxDegraded are taken") {
			t.Errorf("got %v", err)
		}
		close(release)
	})
}
