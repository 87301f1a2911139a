package guard

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"time"
)

// Options has the fields of breaker.Options, which documents them.
type Options struct {
	Name          string
	FailureRatio  float64
	MinRequests   int
	Window        time.Duration
	Cooldown      time.Duration
	MaxConcurrent int
	MinConcurrent int
	MaxDegraded   int
	MaxBackground int
	QueueTimeout  time.Duration
	MaxQueue      int
	Timeout       time.Duration
	IsFailure     func(error) bool
	OnStateChange func(from, to State)
	Logger        *slog.Logger
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
	o.FailureRatio = cmp.Or(o.FailureRatio, 0.5)
	o.MinRequests = cmp.Or(o.MinRequests, 20)
	o.Cooldown = cmp.Or(o.Cooldown, 2*time.Second)
	o.MaxConcurrent = cmp.Or(o.MaxConcurrent, 64)
	if o.MinConcurrent < 0 || o.MinConcurrent > 0 && o.MinConcurrent > o.MaxConcurrent {
		return o, fmt.Errorf("breaker: MinConcurrent must not be negative or over MaxConcurrent, got %d and %d", o.MinConcurrent, o.MaxConcurrent)
	}
	o.MaxDegraded = cmp.Or(o.MaxDegraded, 16)
	o.MaxBackground = cmp.Or(o.MaxBackground, max(1, half(o.MaxConcurrent)))
	o.MaxQueue = cmp.Or(o.MaxQueue, 10_000)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	if o.Timeout > math.MaxInt64/4 || o.QueueTimeout > math.MaxInt64/4 {
		return o, fmt.Errorf("breaker: Timeout and QueueTimeout must be under 73 years; negative turns them off, got %v and %v", o.Timeout, o.QueueTimeout)
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.QueueTimeout == 0 && o.Timeout < 0 {
		o.QueueTimeout = math.MaxInt64 / 4
	}
	o.QueueTimeout = cmp.Or(o.QueueTimeout, o.Timeout)
	return o.withWindow()
}

// half returns half of a limit, or 16 if there is no limit.
func half(limit int) int {
	if limit < 0 {
		return 16
	}
	return limit / 2
}

// withWindow sets or checks Window. gobreaker counts a call in the tenth of the
// window in which it began and drops the oldest tenth as a whole. So a window is sure
// to cover only nine tenths of its length, hence the factor 1.25.
func (o Options) withWindow() (Options, error) {
	least := 2 * float64(o.Timeout)
	if o.MaxConcurrent > 0 {
		places := o.MaxConcurrent
		if o.MinConcurrent > 0 {
			places = o.MinConcurrent
		}
		rounds := (o.MinRequests-1)/places + 1
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
