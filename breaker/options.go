package breaker

import (
	"fmt"
	"math"
	"time"
)

// Options of a Breaker. The zero value works.
type Options struct {
	// Name stands in the text of ErrTimeout. It may be empty.
	Name string

	// FailureRatio is the share of failures among the calls of Window at which
	// the breaker opens, above 0 and at most 1. Zero means 0.5; negative means
	// that it never opens.
	FailureRatio float64
	// MinRequests is how many calls of Window must have come to success or
	// failure before the ratio counts. Zero means 20; negative is an error.
	MinRequests int
	// Window is the rolling time over which calls are counted, each at its
	// start. It must hold MinRequests calls that all run into Timeout, else a
	// source that only hangs would never open the breaker: at least 2 × Timeout,
	// and more where MaxConcurrent is below MinRequests. Zero means 15 s, or what
	// these need if that is longer; negative is an error.
	Window time.Duration
	// Cooldown is how long the breaker stays open before it lets one call try,
	// give or take 20 % drawn anew at each opening, so that the instances of a
	// fleet do not try together. Zero means 5 s; negative is an error.
	Cooldown time.Duration

	// MaxConcurrent is how many functions run at a time. Zero means 64; negative
	// means no limit.
	MaxConcurrent int
	// MaxDegraded is how many of them may come from DoDegraded. Zero means 16;
	// negative means no limit but MaxConcurrent.
	MaxDegraded int
	// MaxBackground is how many of them may come from DoBackground. Zero means
	// half of MaxConcurrent, at least 1, and 16 if that has no limit; negative means
	// no limit but MaxConcurrent.
	MaxBackground int
	// QueueTimeout is how long a call waits for its turn. Zero means 200 ms;
	// negative means that it does not wait.
	QueueTimeout time.Duration
	// MaxQueue is how many calls may wait at MaxConcurrent, and again how many
	// at MaxDegraded; the next one is refused at once. Zero means 1024; negative
	// means no bound but QueueTimeout.
	MaxQueue int

	// Timeout is how long a function may take. Zero means 5 s; negative means
	// no bound but the caller's: then a function that hangs for a caller that
	// waits for ever keeps a half-open breaker half-open.
	Timeout time.Duration

	// IsFailure tells whether an error of the function speaks against the
	// source; "not found" does not. It is not asked about the end of the
	// caller's context, which never counts, nor about a panic, a Goexit or
	// ErrTimeout, which always do. Nil means that every error does. It may be
	// called concurrently; its panic counts as the function's.
	IsFailure func(error) bool
	// OnStateChange is called after each change, one at a time and in order, in
	// a goroutine of its own: it delays no call and may use the Breaker. The
	// change to HalfOpen comes with the first call or look after the cooldown.
	// If it falls 64 changes behind, the last ones reach it as one. Its panic is
	// contained and counted. Nil means nobody is told.
	OnStateChange func(from, to State)
}

func (o Options) withDefaults() (Options, error) {
	if math.IsNaN(o.FailureRatio) || o.FailureRatio > 1 {
		return o, fmt.Errorf("breaker: FailureRatio must be at most 1, or negative for a breaker that never opens, not %v", o.FailureRatio)
	}
	if o.MinRequests < 0 {
		return o, fmt.Errorf("breaker: MinRequests must not be negative, is %d", o.MinRequests)
	}
	if o.Window < 0 {
		return o, fmt.Errorf("breaker: Window must not be negative, is %v", o.Window)
	}
	if o.Cooldown < 0 || o.Cooldown > math.MaxInt64/4 {
		return o, fmt.Errorf("breaker: Cooldown must not be negative or over 73 years, is %v", o.Cooldown)
	}
	setDefault(&o.FailureRatio, 0.5)
	setDefault(&o.MinRequests, 20)
	setDefault(&o.Cooldown, 5*time.Second)
	setDefault(&o.MaxConcurrent, 64)
	setDefault(&o.MaxDegraded, 16)
	setDefault(&o.MaxBackground, max(1, half(o.MaxConcurrent)))
	setDefault(&o.QueueTimeout, 200*time.Millisecond)
	setDefault(&o.MaxQueue, 1024)
	setDefault(&o.Timeout, 5*time.Second)
	if o.Timeout > math.MaxInt64/4 || o.QueueTimeout > math.MaxInt64/4 {
		return o, fmt.Errorf("breaker: Timeout %v and QueueTimeout %v must be under 73 years; negative turns them off", o.Timeout, o.QueueTimeout)
	}
	return o.withWindow()
}

// half of a limit; 16 of none.
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

// withWindow sets or checks Window. A call counts in the tenth of the window in
// which it began, and the oldest tenth goes as a whole: what must fit has to fit
// in nine of them, so a quarter is added.
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
		return o, fmt.Errorf("breaker: MinRequests %d is too high for Timeout %v and MaxConcurrent %d", o.MinRequests, o.Timeout, o.MaxConcurrent)
	}
	if o.Window == 0 {
		o.Window = max(15*time.Second, time.Duration(least))
	}
	if o.Window < time.Duration(least) {
		return o, fmt.Errorf("breaker: Window %v is too short for Timeout %v: with MinRequests %d and MaxConcurrent %d it must be at least %v, or a source that hangs would never open the breaker",
			o.Window, o.Timeout, o.MinRequests, o.MaxConcurrent, time.Duration(least))
	}
	return o, nil
}
