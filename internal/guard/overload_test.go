package guard_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/levee-go/levee/internal/guard"
	"github.com/levee-go/levee/internal/race"
)

// The model of a database with places for 64 queries, and of what callers see of the
// queue before it: arrivals, service times, deadlines. Two other queues run beside the
// breaker's as controls, on the same arrivals.

const places = 64

// A queue runs fn in one of 64 places, when it has one.
type queue func(ctx context.Context, fn func(context.Context) error) error

// queues makes the breaker's queue and the controls. "fixed" was this breaker's queue
// before it knew its pace; "fifo" is what a semaphore or a pool of connections gives.
func queues(t *testing.T) map[string]queue {
	waiting := func(most time.Duration) queue {
		sem := semaphore.NewWeighted(places)
		return func(ctx context.Context, fn func(context.Context) error) error {
			wait, cancel := context.WithTimeout(ctx, most)
			defer cancel()
			if err := sem.Acquire(wait, 1); err != nil {
				return guard.ErrLimited
			}
			defer sem.Release(1)
			return fn(ctx)
		}
	}
	b := newBreaker(t, guard.Options{MaxConcurrent: places})
	return map[string]queue{"breaker": b.Do, "fixed": waiting(200 * time.Millisecond), "fifo": waiting(time.Hour)}
}

// An outcome is what became of one call.
type outcome struct {
	at     time.Duration // its arrival, from the beginning
	took   time.Duration
	ran    bool
	served bool // in time
}

// A database counts what runs.
type database struct {
	service func() time.Duration

	mu        sync.Mutex
	now, most int
}

func (d *database) query(ctx context.Context) error {
	d.mu.Lock()
	d.now++
	d.most = max(d.most, d.now)
	takes := d.service()
	d.mu.Unlock()
	time.Sleep(takes)
	d.mu.Lock()
	d.now--
	d.mu.Unlock()
	return ctx.Err()
}

// arrive makes calls at the given times, whose callers wait for patience, and
// returns what became of them.
func (d *database) arrive(q queue, times []time.Duration, patience time.Duration) []outcome {
	outcomes := make([]outcome, len(times))
	var calls sync.WaitGroup
	began := time.Now()
	for i, at := range times {
		time.Sleep(at - time.Since(began))
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			called := time.Now()
			var ran atomic.Bool
			err := q(ctx, func(ctx context.Context) error {
				ran.Store(true)
				return d.query(ctx)
			})
			took := time.Since(called)
			outcomes[i] = outcome{at, took, ran.Load(), err == nil && took <= patience}
		})
	}
	calls.Wait()
	time.Sleep(time.Minute) // the functions that were left behind end
	return outcomes
}

// poisson returns the times of random arrivals at a rate per second.
func poisson(rng *rand.Rand, from, to time.Duration, rate float64) (times []time.Duration) {
	for at := from; at < to; times = append(times, at) {
		at += time.Duration(rng.ExpFloat64() / rate * float64(time.Second))
	}
	return times
}

// A summary counts outcomes.
type summary struct {
	calls, served int
	late          int // did not run, and heard so only after 10 ms
	longest       time.Duration
}

func (s summary) String() string {
	return fmt.Sprintf("%d of %d served, %d refused after more than 10 ms, longest %v", s.served, s.calls, s.late, s.longest)
}

func sum(outcomes []outcome, from, to time.Duration) (s summary) {
	for _, o := range outcomes {
		if o.at < from || o.at >= to {
			continue
		}
		s.calls++
		s.longest = max(s.longest, o.took)
		switch {
		case o.served:
			s.served++
		case !o.ran && o.took > 10*time.Millisecond:
			s.late++
		}
	}
	return s
}

func constant(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// A burst is over soon: so it waits. The fixed queue fails four in five of 2,000.
func TestAColdStartFailsNobody(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for _, keys := range []int{500, 2000, 5000} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for name, q := range queues(t) {
					d := &database{service: constant(50 * time.Millisecond)}
					got := sum(d.arrive(q, make([]time.Duration, keys), 10*time.Second), 0, time.Hour)
					t.Logf("%-8s %v", name, got)
					switch {
					case name != "fixed" && got.served < keys:
						t.Errorf("%s: %v", name, got)
					case name == "fixed" && got.served > keys*7/10:
						t.Errorf("%s: %v, but it is to show that a fixed wait fails a burst", name, got)
					}
					if d.most > places {
						t.Errorf("%s: %d ran at a time", name, d.most)
					}
				}
			})
		})
	}
}

// A database that takes ten times as long has twice the load that it can serve. The fixed
// queue lets nobody be served whose deadline is short, and keeps all others waiting in
// vain; in the unbounded one every caller waits until its deadline is near.
func TestStandingOverloadIsShed(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	const usual, slow = 50 * time.Millisecond, 500 * time.Millisecond
	const change, steady, end = 3 * time.Second, 6 * time.Second, 20 * time.Second
	capacity := places / slow.Seconds() // a second
	for _, test := range []struct {
		service  func(*rand.Rand, time.Duration) time.Duration
		patience time.Duration
		goodput  float64 // of what the database can do: of queries that differ some take longer than their callers have
		late     float64 // of the refused, who may hear so late: the estimate is as good as the queries are alike
		fixed    float64 // the most that the fixed queue can do
	}{
		{alike, 600 * time.Millisecond, 0.9, 0, 0},
		{alike, 3 * time.Second, 0.9, 0, 1.05},
		{exponential, 3 * time.Second, 0.85, 0.1, 1.05},
	} {
		t.Run(fmt.Sprint(test.patience), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for name, q := range queues(t) {
					rng, began := rand.New(rand.NewPCG(1, 2)), time.Now()
					d := &database{service: func() time.Duration {
						if time.Since(began) < change {
							return test.service(rng, usual)
						}
						return test.service(rng, slow)
					}}
					outcomes := d.arrive(q, poisson(rng, 0, end, 2*capacity), test.patience)
					got, changing := sum(outcomes, steady, end), sum(outcomes, change, steady)
					goodput := float64(got.served) / (capacity * (end - steady).Seconds())
					t.Logf("%-8s goodput %3.0f %%: %v; while it changes: %v", name, 100*goodput, got, changing)
					if d.most > places {
						t.Errorf("%s: %d ran at a time", name, d.most)
					}
					switch name {
					case "breaker":
						if goodput < test.goodput || float64(got.late) > test.late*float64(got.calls-got.served) || changing.late > changing.calls/4 {
							t.Error("what can be served is not, or who cannot be served hears so late")
						}
					case "fixed":
						if goodput > test.fixed || got.late < (got.calls-got.served)/2 && goodput > 0 {
							t.Error("this is to show that a fixed wait is of no use")
						}
					case "fifo":
						if goodput > 0.1 {
							t.Error("this is to show that a wait without a bound is of no use")
						}
					}
				}
			})
		})
	}
}

func alike(_ *rand.Rand, d time.Duration) time.Duration { return d }

func exponential(rng *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(rng.ExpFloat64() * float64(d))
}
