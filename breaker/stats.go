package breaker

import "time"

// Stats is a snapshot of a Breaker. The counters start at zero in New. While no
// call is inside, the calls are Successes + Failures + Excluded + RefusedOpen +
// RefusedLimited + Left.
type Stats struct {
	State State // now

	Running int // functions running now, each in a place of MaxConcurrent or nested in one
	Stuck   int // of these, those whose caller has gone
	Waiting int // calls waiting for a place
	// Limit is how many functions may run at a time, beside nested calls: MaxConcurrent, or what
	// with MinConcurrent has been found. 0: no limit.
	Limit int
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
}
