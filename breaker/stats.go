package breaker

import "time"

// Stats is a snapshot of a Breaker. The counters start at zero in New. While no
// call is running or waiting, Successes + Failures + Excluded + RefusedOpen +
// RefusedLimited + Left is the number of all calls.
type Stats struct {
	State State // now

	Running int // functions running now, each in a place of MaxConcurrent or nested in one
	Stuck   int // running functions whose callers have left
	Waiting int // calls waiting for a place
	// Limit is how many functions may run at a time, nested calls not counted: MaxConcurrent, or
	// with MinConcurrent the limit that the breaker has found. 0: no limit.
	Limit int
	// Service is how long the last functions kept their places on average, by which the queue
	// refuses calls. 0: no function has ended since the breaker was last open.
	Service time.Duration

	Successes      uint64 // calls whose function did not fail
	Failures       uint64 // calls whose function failed, see Options.IsFailure
	Timeouts       uint64 // Failures by Timeout
	Excluded       uint64 // calls whose caller left while the function ran
	RefusedOpen    uint64 // calls refused with ErrOpen
	RefusedLimited uint64 // calls refused with ErrLimited
	Shed           uint64 // RefusedLimited calls whose turn could not be expected in time
	Left           uint64 // calls whose caller left before the function ran

	Waited   uint64        // calls that had to wait for their place, and got one
	WaitTime time.Duration // total wait of these calls
}
