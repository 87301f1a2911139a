package guard

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/wait"
)

// buckets is the number of parts of the rolling window.
const buckets = 10

// A verdict says whether a call speaks for or against the source. gobreaker takes it as an error.
type verdict error

var (
	success  verdict // nil
	failure  verdict = errors.New("failure")
	timeout  verdict = errors.New("timeout") // counts as a failure too
	excluded verdict = errors.New("excluded")
)

// A circuit is gobreaker's state machine, with refusals that take no mutex while it is
// open. gobreaker decides, and ignores the verdict on a call that began before the last
// change of state.
//
// A nil circuit never opens.
type circuit struct {
	machine  *gobreaker.TwoStepCircuitBreaker[struct{}]
	cooldown time.Duration        // drawn at random for this circuit
	changed  func(from, to State) // must not block

	// openUntil mirrors the end of gobreaker's open time, in nanoseconds since start; 0
	// while closed. An open breaker must refuse cheaply, because all callers of the source
	// call it: without openUntil a refusal takes three mutexes and twice the time.
	start     time.Time
	openUntil atomic.Int64
}

func newCircuit(o Options, changed func(from, to State)) *circuit {
	// Drawn once, because gobreaker's open time is fixed: instances of a fleet that open together
	// then try the source at different times, further apart after each failure.
	cooldown := max(1, wait.Jitter(o.Cooldown, 0.2)) // gobreaker replaces 0 by a minute
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

// refuses reports whether the circuit is open. It takes no mutex, and does not read the
// clock while the circuit is closed. A call that it does not refuse still needs admit.
func (c *circuit) refuses() bool {
	if c == nil {
		return false
	}
	until := c.openUntil.Load()
	return until != 0 && int64(time.Since(c.start)) < until
}

// admit reports whether a call may run; if so, the caller must pass its verdict to settle. tries
// reports that a half-open circuit let the call in: the circuit was not closed before, and has been
// neither closed nor opened since.
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

// onChange notes a change of state. It runs with gobreaker's mutex held, and must neither
// block nor call gobreaker.
func (c *circuit) onChange(_ string, from, to gobreaker.State) {
	switch State(to) {
	case Open:
		c.openUntil.Store(int64(time.Since(c.start) + c.cooldown))
	case Closed:
		c.openUntil.Store(0)
	}
	c.changed(State(from), State(to))
}
