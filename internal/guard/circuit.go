package guard

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/wait"
)

// buckets is into how many parts the rolling window is cut.
const buckets = 10

// A verdict says what a call tells about the source. gobreaker takes it as an error.
type verdict error

var (
	success  verdict // nil
	failure  verdict = errors.New("failure")
	timeout  verdict = errors.New("timeout") // a failure too
	excluded verdict = errors.New("excluded")
)

// A circuit is gobreaker's state machine, with one thing that it lacks: a refusal
// while it is open takes no mutex. gobreaker decides, and it ignores the verdict on a call that began before
// the last change of state.
//
// A nil circuit never opens.
type circuit struct {
	machine  *gobreaker.TwoStepCircuitBreaker[struct{}]
	cooldown time.Duration        // as drawn for this circuit
	changed  func(from, to State) // must not block

	// openUntil mirrors what gobreaker knows, in nanoseconds since start, and is 0
	// while closed. An open breaker must refuse cheaply, as all callers of the source
	// come to it: without the mirror a refusal takes three mutexes and twice the time.
	start     time.Time
	openUntil atomic.Int64
}

func newCircuit(o Options, changed func(from, to State)) *circuit {
	// Drawn once, because gobreaker's open time is fixed: instances of a fleet that open together
	// then try the source at different times, further apart after each failure.
	cooldown := max(1, wait.Jitter(o.Cooldown, 0.2)) // gobreaker takes 0 for a minute
	c := &circuit{cooldown: cooldown, changed: changed, start: time.Now()}
	c.machine = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:  1,
		Interval:     o.Window,
		BucketPeriod: o.Window / buckets,
		Timeout:      c.cooldown,
		ReadyToTrip: func(n gobreaker.Counts) bool {
			judged := int(n.TotalSuccesses) + int(n.TotalFailures)
			return judged >= o.MinRequests && float64(n.TotalFailures) >= o.FailureRatio*float64(judged)
		},
		IsExcluded:    func(err error) bool { return errors.Is(err, excluded) },
		OnStateChange: c.onChange,
	})
	return c
}

// refuses reports whether the circuit is open. It takes no mutex, and while closed
// it does not read the clock. Only admit knows whether a call may run.
func (c *circuit) refuses() bool {
	if c == nil {
		return false
	}
	until := c.openUntil.Load()
	return until != 0 && int64(time.Since(c.start)) < until
}

// admit lets a call run, whose verdict must then be given to settle. It tries if it was let in
// half-open: then the circuit was not closed before, and has been neither closed nor opened since.
func (c *circuit) admit() (settle func(verdict error), tries, ok bool) {
	if c == nil {
		return func(error) {}, false, true
	}
	until := c.openUntil.Load()
	settle, err := c.machine.Allow()
	failpoint.At("admitted")
	return settle, until != 0 && c.openUntil.Load() == until, err == nil
}

func (c *circuit) state() State {
	if c == nil {
		return Closed
	}
	return State(c.machine.State())
}

// onChange runs under gobreaker's mutex. It must neither block nor ask gobreaker
// anything.
func (c *circuit) onChange(_ string, from, to gobreaker.State) {
	switch State(to) {
	case Open:
		c.openUntil.Store(int64(time.Since(c.start) + c.cooldown))
	case Closed:
		c.openUntil.Store(0)
	}
	c.changed(State(from), State(to))
}
