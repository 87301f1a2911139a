package breaker

import (
	"log/slog"
	"time"
)

// Options configures a Breaker. The zero value works.
type Options struct {
	// Name is in the text of ErrTimeout, in log lines and in metrics. It may be empty.
	Name string

	// FailureRatio is the share of failures among the calls of Window at which the breaker opens,
	// at most 1. 0: 0.5; negative: it never opens.
	FailureRatio float64
	// MinRequests is how many calls of Window must have succeeded or failed before FailureRatio
	// applies. 0: 20; negative is an error.
	MinRequests int
	// Window is the rolling time over which calls are counted, each at its start. Leave it 0: 15 s,
	// or the shortest allowed Window if that is longer. A source with fewer than MinRequests calls
	// in 15 s takes a longer one, such as 1 min. It must be long enough for MinRequests calls that
	// all run into Timeout, otherwise a source that only hangs would never open the breaker: at
	// least 2 × Timeout, and more where MinConcurrent, or MaxConcurrent without it, is below
	// MinRequests. Negative is an error.
	//
	// New does not check two rarer cases, because a longer Window opens the breaker later when calls
	// fail at once. A cache whose keys share calls of LoadMany makes eight calls a second while these
	// hang: with its calls alone MinRequests must be at most 60 with the defaults. And with MaxDegraded
	// below 10 a source that hangs while Redis does not reply does not open the breaker: its callers
	// wait for their deadlines, unless Window is at least 1.25 × Timeout for each MaxDegraded calls of
	// MinRequests.
	Window time.Duration
	// Cooldown is how long the breaker stays open before it lets one call try, give or take 20 %.
	// New draws the difference at random, so that the instances of a fleet that open together do
	// not try together. Each try costs the source one call of each process. 0: 2 s; negative is an error.
	Cooldown time.Duration

	// MaxConcurrent is how many functions run at a time in this process, nested calls not counted:
	// as many connections as this process may take of the source. 0: 64; negative: no limit.
	MaxConcurrent int
	// MinConcurrent, if it is not 0, makes the limit move between MinConcurrent and
	// MaxConcurrent: see "The limit" in the package's comment. Set it to 2 for a database that
	// slows down with the queries that run, if loads take well under a second, a process has three
	// places or more, and the clocks of the hosts agree to 15 ms. It is at most MaxConcurrent, which
	// must not be negative. 0: the limit is MaxConcurrent; negative is an error.
	MinConcurrent int
	// MaxDegraded is how many of these functions may be loads that a cache makes without a lease,
	// mostly because its Redis does not answer, when every process may be loading the same key.
	// It has no effect on Do. Leave it 0, which is 16, or take the queries that the database can
	// run of all processes together, divided by their number. Negative: no limit but MaxConcurrent.
	MaxDegraded int
	// MaxBackground is how many of these functions may be loads of a cache that no caller waits
	// for, such as refreshes. They do not wait for a place. It has no effect on Do. Leave it 0,
	// which is half of MaxConcurrent, at least 1, or 16 if MaxConcurrent is no limit; or take 1
	// if a single load is heavy for the database. Negative: no limit but MaxConcurrent.
	MaxBackground int
	// QueueTimeout is the longest that a call waits for a place. A call that can be expected to
	// wait for longer, or until it is too late for its caller's deadline, is refused at once. 0:
	// a call waits until its caller's deadline, or for Timeout if there is none; negative: calls
	// do not wait.
	QueueTimeout time.Duration
	// MaxQueue bounds the calls that wait; degraded loads have a queue of their own of the same
	// length. The next call is refused at once. It bounds the memory of waiting calls, some 10 KB
	// each with their goroutines. 0: 10,000; negative: no bound but QueueTimeout.
	MaxQueue int

	// Timeout is how long a function may take. 0: 5 s; negative: no bound but the caller's
	// context. Then a function that hangs, for a caller whose context does not end, keeps a
	// half-open breaker half-open.
	Timeout time.Duration

	// IsFailure reports whether an error of the function counts as a failure of the source; "not
	// found" should not. It is not called for the end of the caller's context, which never
	// counts, nor for a panic, a Goexit or ErrTimeout, which always do. It may be called
	// concurrently; its panic counts as the function's. Nil: every error is a failure of the
	// source.
	IsFailure func(error) bool
	// OnStateChange is called after each change of state, one at a time and in order, in a
	// goroutine of its own: it delays no call and may use the Breaker. The change to HalfOpen
	// comes with the first call, or the first State or Stats, after the cooldown. If
	// OnStateChange is 64 changes behind, later changes are joined to the last of them. Its
	// panics are contained and logged. Nil: no function is called.
	OnStateChange func(from, to State)
	// Logger gets a warning when the breaker opens, with the last failure, and one when
	// it closes again or OnStateChange panics, each at most once a minute. Nil: slog.Default().
	Logger *slog.Logger
}
