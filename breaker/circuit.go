package breaker

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// buckets is into how many parts the rolling window is cut.
const buckets = 10

// verdict is what a call says about the source.
type verdict error

// gobreaker takes a verdict as an error.
var (
	success  verdict // nil
	failure  verdict = errors.New("failure")
	excluded verdict = errors.New("excluded")
)

// A circuit is gobreaker's state machine behind a gate.
//
// gobreaker counts and decides; its open time however is fixed, so that all
// instances of a fleet would come back to an ailing source together. Its own is
// therefore set to nothing, and after each opening the gate stays shut for a time
// drawn anew. While it is shut gobreaker must not be asked anything, since it
// would take itself for half-open: mu makes the look at the gate and the question
// one step.
//
// gobreaker runs its functions under its mutex, so none of them is the user's.
//
// A nil circuit never opens.
type circuit struct {
	cooldown time.Duration
	changed  func(from, to State) // must not block
	start    time.Time            // of the clock that gate uses

	mu      sync.Mutex // held around each use of machine
	machine *gobreaker.TwoStepCircuitBreaker[struct{}]

	// Written under mu, read without it by those who only want to be refused cheaply.
	phase   atomic.Int32 // a State
	gate    atomic.Int64 // nanoseconds since start; shut until then, if the phase is Open
	trying  atomic.Bool  // the one call of a half-open breaker is running
	current atomic.Pointer[era]
}

// An era is the time from one opening to the next. Its context ends with the
// latter, and with it the waiting of those who are in the queue.
type era struct {
	ctx context.Context
	end context.CancelCauseFunc
}

func newEra() *era {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &era{ctx, cancel}
}

// A ticket lets one call run and carries its verdict.
type ticket struct {
	done func(error)
	try  bool // the one call of a half-open breaker
}

func newCircuit(o Options, changed func(from, to State)) *circuit {
	c := &circuit{cooldown: o.Cooldown, changed: changed, start: time.Now()}
	c.current.Store(newEra())
	c.machine = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:  1,
		Interval:     o.Window,
		BucketPeriod: o.Window / buckets,
		Timeout:      time.Nanosecond, // the least; the gate decides
		ReadyToTrip: func(n gobreaker.Counts) bool {
			judged := int(n.TotalSuccesses) + int(n.TotalFailures)
			return judged >= o.MinRequests && float64(n.TotalFailures) >= o.FailureRatio*float64(judged)
		},
		IsExcluded:    func(err error) bool { return errors.Is(err, excluded) },
		OnStateChange: c.onChange,
	})
	return c
}

func (c *circuit) era() *era {
	if c == nil {
		return nil
	}
	return c.current.Load()
}

// refuses tells whether admit would refuse, without a lock and, while closed,
// without a look at the clock.
func (c *circuit) refuses() bool {
	if c == nil {
		return false
	}
	switch State(c.phase.Load()) {
	case Open:
		return c.shut()
	case HalfOpen:
		return c.trying.Load()
	default:
		return false
	}
}

func (c *circuit) shut() bool {
	return State(c.phase.Load()) == Open && int64(time.Since(c.start)) < c.gate.Load()
}

// admit lets a call run, which must then be settled.
func (c *circuit) admit() (t ticket, ok bool) {
	if c == nil {
		return ticket{}, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuses() {
		return ticket{}, false
	}
	done, err := c.machine.Allow()
	if err != nil {
		return ticket{}, false
	}
	t = ticket{done: done, try: State(c.phase.Load()) == HalfOpen}
	if t.try {
		c.trying.Store(true)
	}
	return t, true
}

// settle gives the verdict on an admitted call.
func (c *circuit) settle(t ticket, v verdict) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.try {
		c.trying.Store(false)
	}
	if !c.shut() { // else it began before the opening and no longer counts
		t.done(v)
	}
}

func (c *circuit) state() State {
	if c == nil {
		return Closed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut() {
		return Open
	}
	return State(c.machine.State())
}

// onChange runs under mu and gobreaker's own mutex.
func (c *circuit) onChange(_ string, from, to gobreaker.State) {
	if State(to) == Open {
		c.gate.Store(int64(time.Since(c.start) + jitter(c.cooldown)))
	}
	c.phase.Store(int32(to))
	if State(to) == Open {
		// Only now: who takes the next era finds the phase open.
		c.current.Swap(newEra()).end(ErrOpen)
	}
	c.changed(State(from), State(to))
}

// jitter is d give or take 20 %.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
