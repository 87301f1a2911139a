package guard

import (
	"errors"
	"sync/atomic"
	"time"
)

// Stats has the fields of breaker.Stats, which documents them.
type Stats struct {
	State          State
	Running        int
	Stuck          int
	Waiting        int
	Limit          int
	Service        time.Duration
	Successes      uint64
	Failures       uint64
	Timeouts       uint64
	Excluded       uint64
	RefusedOpen    uint64
	RefusedLimited uint64
	Shed           uint64
	Left           uint64
	Waited         uint64
	WaitTime       time.Duration
}

// Stats returns a snapshot of the counters. It does not wait for calls.
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
	}
	b.queue.stats(&s)
	return s
}

type tally struct {
	running, stuck                          atomic.Int64
	successes, failures, timeouts, excluded atomic.Uint64
	open, limited, left                     atomic.Uint64
}

// judged counts a call whose function ran, by its verdict.
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

// refused counts a call without a place, by its error.
func (t *tally) refused(err error) {
	var caller *callerLeft
	switch {
	case errors.Is(err, ErrOpen):
		t.open.Add(1)
	case errors.As(err, &caller):
		t.left.Add(1)
	default:
		t.limited.Add(1)
	}
}
