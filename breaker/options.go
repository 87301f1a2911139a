package breaker

import (
	"fmt"
	"log/slog"
	"math"
	"time"
)

// Options of a Breaker. The zero value works.
type Options struct {
	// Name stands in the text of ErrTimeout, in log lines and in metrics. It may be empty.
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
	// and more where MaxConcurrent is below MinRequests. 0: 15 s, or the least
	// that is allowed if that is longer; negative is an error.
	Window time.Duration
	// Cooldown is how long the breaker stays open before it lets one call try,
	// give or take 20 %. New draws the difference, so that the instances of a
	// fleet that open together do not try together. 0: 5 s; negative is an error.
	Cooldown time.Duration

	// MaxConcurrent is how many functions run at a time, beside nested calls. 0: 64; negative: no limit.
	MaxConcurrent int
	// MaxDegraded is how many of them may be of class Degraded. 0: 16; negative:
	// no limit but MaxConcurrent.
	MaxDegraded int
	// MaxBackground is how many of them may be of class Background. 0: half of
	// MaxConcurrent, at least 1, or 16 if MaxConcurrent is no limit; negative: no
	// limit but MaxConcurrent.
	MaxBackground int
	// QueueTimeout is the longest that a call waits for a place. One that can be
	// expected to wait for longer, or until it is too late for its caller's deadline,
	// is refused at once. 0: until then, or for Timeout if its caller has no deadline;
	// negative: calls do not wait.
	QueueTimeout time.Duration
	// MaxQueue is how many normal and how many degraded calls may wait; the next one
	// is refused at once. It bounds the memory of what waits, some 10 KB a call with
	// its goroutines. 0: 10,000; negative: no bound but QueueTimeout.
	MaxQueue int

	// Timeout is how long a function may take. 0: 5 s; negative: no bound but the
	// caller's. Then a function that hangs, for a caller whose context does not
	// end, keeps a half-open breaker half-open.
	Timeout time.Duration

	// IsFailure reports whether an error of the function speaks against the
	// source; "not found" does not. It is not asked about the end of the
	// caller's context, which never counts, nor about a panic, a Goexit or
	// ErrTimeout, which always do. It may be called concurrently; its panic counts
	// as the function's. Nil: every error speaks against the source.
	IsFailure func(error) bool
	// OnStateChange is called after each change, one at a time and in order, in
	// a goroutine of its own: it delays no call and may use the Breaker. The
	// change to HalfOpen comes with the first call or look after the cooldown.
	// If it is 64 changes behind, later changes are joined to the last of them. Its
	// panics are contained and counted. Nil: nobody is told.
	OnStateChange func(from, to State)
	// Logger gets a warning when the breaker opens, with the last failure, and one when
	// it closes again, each at most once a minute. Nil: slog.Default().
	Logger *slog.Logger

	capped bool // QueueTimeout was given
}

func (o Options) withDefaults() (Options, error) {
	if math.IsNaN(o.FailureRatio) || o.FailureRatio > 1 {
		return o, fmt.Errorf("breaker: FailureRatio must be at most 1, or negative for a breaker that never opens, got %v", o.FailureRatio)
	}
	if o.MinRequests < 0 {
		return o, fmt.Errorf("breaker: MinRequests must not be negative, got %d", o.MinRequests)
	}
	if o.Window < 0 {
		return o, fmt.Errorf("breaker: Window must not be negative, got %v", o.Window)
	}
	if o.Cooldown < 0 || o.Cooldown > math.MaxInt64/4 {
		return o, fmt.Errorf("breaker: Cooldown must not be negative or over 73 years, got %v", o.Cooldown)
	}
	setDefault(&o.FailureRatio, 0.5)
	setDefault(&o.MinRequests, 20)
	setDefault(&o.Cooldown, 5*time.Second)
	setDefault(&o.MaxConcurrent, 64)
	setDefault(&o.MaxDegraded, 16)
	setDefault(&o.MaxBackground, max(1, half(o.MaxConcurrent)))
	setDefault(&o.MaxQueue, 10_000)
	setDefault(&o.Timeout, 5*time.Second)
	if o.Timeout > math.MaxInt64/4 || o.QueueTimeout > math.MaxInt64/4 {
		return o, fmt.Errorf("breaker: Timeout and QueueTimeout must be under 73 years; negative turns them off, got %v and %v", o.Timeout, o.QueueTimeout)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.capped = o.QueueTimeout != 0
	if o.QueueTimeout == 0 && o.Timeout < 0 {
		o.QueueTimeout = math.MaxInt64 / 4
	}
	setDefault(&o.QueueTimeout, o.Timeout)
	return o.withWindow()
}

// half returns half of a limit, or 16 if there is no limit.
func half(limit int) int {
	if limit < 0 {
		return 16
	}
	return limit / 2
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// withWindow sets or checks Window. gobreaker counts a call in the tenth of the
// window in which it began and drops the oldest tenth as a whole. So only nine
// tenths of the window are certain, hence the factor 1.25.
func (o Options) withWindow() (Options, error) {
	least := 2 * float64(o.Timeout)
	if o.MaxConcurrent > 0 {
		rounds := (o.MinRequests-1)/o.MaxConcurrent + 1
		least = max(least, 1.25*float64(rounds)*float64(o.Timeout))
	}
	if o.FailureRatio < 0 || o.Timeout < 0 {
		least = 0
	}
	if least > math.MaxInt64/2 {
		return o, fmt.Errorf("breaker: MinRequests is too high for Timeout %v and MaxConcurrent %d, got %d", o.Timeout, o.MaxConcurrent, o.MinRequests)
	}
	if o.Window == 0 {
		o.Window = max(15*time.Second, time.Duration(least))
	}
	if o.Window < time.Duration(least) {
		return o, fmt.Errorf("breaker: Window must be at least %v with Timeout %v, MinRequests %d and MaxConcurrent %d, "+
			"or a source that hangs would never open the breaker, got %v",
			time.Duration(least), o.Timeout, o.MinRequests, o.MaxConcurrent, o.Window)
	}
	return o, nil
}
