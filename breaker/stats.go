package breaker

import (
	"errors"
	"sync/atomic"
	"time"
)

// Stats is a snapshot of a Breaker. The counters start at zero in New. While no
// call is inside, the calls are Successes + Failures + Excluded + RefusedOpen +
// RefusedLimited + Left. A Place that is released without a Run is in none of them.
type Stats struct {
	State State // now

	Running int // functions running now, each in a place of MaxConcurrent or nested in one
	Stuck   int // of these, those whose caller has gone
	Waiting int // calls waiting for a place
	// Service is how long the last functions kept their places, the mean by which the queue
	// refuses calls. 0: none has ended since the breaker was last open.
	Service time.Duration

	Successes      uint64 // calls whose function did not speak against the source
	Failures       uint64 // calls whose function did
	Timeouts       uint64 // of these failures, those by Timeout
	Excluded       uint64 // the caller left while its function ran
	RefusedOpen    uint64 // with ErrOpen
	RefusedLimited uint64 // with ErrLimited
	Shed           uint64 // of these, those whose turn could not be expected in time
	Left           uint64 // the caller left before its function ran

	Waited   uint64        // calls that had to wait for their place, and got one
	WaitTime time.Duration // of all of these

	LostCallbacks uint64 // calls of OnStateChange that panicked or called Goexit
}

// Stats takes a snapshot. It does not wait.
func (b *Breaker) Stats() Stats {
	if b == nil {
		return Stats{}
	}
	s := Stats{
		State:          b.circuit.state(),
		Running:        int(b.tally.running.Load()),
		Stuck:          int(b.tally.stuck.Load()),
		Successes:      b.tally.successes.Load(),
		Failures:       b.tally.failures.Load(),
		Timeouts:       b.tally.timeouts.Load(),
		Excluded:       b.tally.excluded.Load(),
		RefusedOpen:    b.tally.open.Load(),
		RefusedLimited: b.tally.limited.Load(),
		Left:           b.tally.left.Load(),
		LostCallbacks:  b.hook.failed.Load(),
	}
	b.queue.stats(&s)
	return s
}

type tally struct {
	running, stuck                          atomic.Int64
	successes, failures, timeouts, excluded atomic.Uint64
	open, limited, left                     atomic.Uint64
}

// judged counts a call whose function ran.
func (t *tally) judged(v verdict) {
	switch v {
	case success:
		t.successes.Add(1)
	case timeout:
		t.timeouts.Add(1)
		t.failures.Add(1)
	case excluded:
		t.excluded.Add(1)
	default:
		t.failures.Add(1)
	}
}

// refused counts a call that did not get a place.
func (t *tally) refused(err error) {
	var gone *gone
	switch {
	case errors.Is(err, ErrOpen):
		t.open.Add(1)
	case errors.As(err, &gone):
		t.left.Add(1)
	default:
		t.limited.Add(1)
	}
}
