package breaker

import (
	"log/slog"
	"time"
)

// Options of a Breaker. The zero value works.
type Options struct {
	// Name is in the text of ErrTimeout, in log lines and in metrics. It may be empty.
	Name string

	// FailureRatio is the share of failures among the calls of Window at which
	// the breaker opens, at most 1. 0: 0.5; negative: it never opens.
	FailureRatio float64
	// MinRequests is how many calls of Window must have come to success or
	// failure before the ratio counts. 0: 20; negative is an error.
	MinRequests int
	// Window is the rolling time over which calls are counted, each at its
	// start. It must hold MinRequests calls that all run into Timeout, else a
	// source that only hangs would never open the breaker: at least 2 × Timeout,
	// and more where MinConcurrent, or MaxConcurrent without it, is below MinRequests. 0: 15 s, or the least
	// that is allowed if that is longer; negative is an error.
	Window time.Duration
	// Cooldown is how long the breaker stays open before it lets one call try,
	// give or take 20 %. New draws the difference, so that the instances of a
	// fleet that open together do not try together. 0: 5 s; negative is an error.
	Cooldown time.Duration

	// MaxConcurrent is how many functions run at a time, beside nested calls. 0: 64; negative: no limit.
	MaxConcurrent int
	// MinConcurrent, if it is set, has the limit move between MinConcurrent and MaxConcurrent: see
	// "The limit" in the package's comment. It is at most MaxConcurrent, which must not be negative.
	// 0: the limit is MaxConcurrent; negative is an error.
	MinConcurrent int
	// MaxDegraded is how many of them may be loads that a cache makes because its Redis does
	// not answer, when every process may be loading the same. 0: 16; negative: no limit but
	// MaxConcurrent.
	MaxDegraded int
	// MaxBackground is how many of them may be loads of a cache that nobody waits for, such
	// as refreshes. They do not wait for a place. 0: half of MaxConcurrent, at least 1, or 16
	// if MaxConcurrent is no limit; negative: no limit but MaxConcurrent.
	MaxBackground int
	// QueueTimeout is the longest that a call waits for a place. One that can be
	// expected to wait for longer, or until it is too late for its caller's deadline,
	// is refused at once. 0: until then, or for Timeout if its caller has no deadline;
	// negative: calls do not wait.
	QueueTimeout time.Duration
	// MaxQueue is how many calls may wait, and how many of the loads that MaxDegraded bounds; the next one
	// is refused at once. It bounds the memory of what waits, some 10 KB a call with
	// its goroutines. 0: 10,000; negative: no bound but QueueTimeout.
	MaxQueue int

	// Timeout is how long a function may take. 0: 5 s; negative: no bound but the
	// caller's. Then a function that hangs, for a caller whose context does not
	// end, keeps a half-open breaker half-open.
	Timeout time.Duration

	// IsFailure reports whether an error of the function speaks against the
	// source; "not found" does not. It is not called for the end of the
	// caller's context, which never counts, nor for a panic, a Goexit or
	// ErrTimeout, which always do. It may be called concurrently; its panic counts
	// as the function's. Nil: every error speaks against the source.
	IsFailure func(error) bool
	// OnStateChange is called after each change, one at a time and in order, in
	// a goroutine of its own: it delays no call and may use the Breaker. The
	// change to HalfOpen comes with the first call or look after the cooldown.
	// If it is 64 changes behind, later changes are joined to the last of them. Its
	// panics are contained and logged. Nil: nobody is told.
	OnStateChange func(from, to State)
	// Logger gets a warning when the breaker opens, with the last failure, and one when
	// it closes again or OnStateChange panics, each at most once a minute. Nil: slog.Default().
	Logger *slog.Logger
}
