package flight

import (
	"context"
	"time"
)

// Fallbacks
//
// A fallback is an old value that a caller may take when the load fails or takes too long,
// or at the caller's own deadline. Each caller finds its own fallback, by a read that began
// after its Get, so the fallback is no value that was invalidated before that Get.
//
//	reader A                         writer             reader B
//	1 reads v1, past its TTL,
//	  opens the flight, which
//	  starts a slow load
//	                                 2 Invalidate
//	                                                    3 joins A's flight
//	                                                    4 its deadline comes: v1 would be wrong
//
// A may take v1. B has read nothing, since a flight was running; it reads when it needs a
// fallback, finds nothing, and waits on. Without the Invalidate its read would find v1. If B
// took the fallback that A has found, the flight would have to track for which callers that
// one is good enough, and to read again for the others.

// A Patience says when a caller stops waiting for a load and takes its fallback.
type Patience struct {
	// Fallback returns the caller's own fallback. The first call may have to read it. nil:
	// the caller has none.
	Fallback func() (any, bool)
	// SoftTimeout is how long a caller with a fallback waits. 0: until its context
	// ends.
	SoftTimeout time.Duration
	// Since is when the wait began, for a caller who waits for several ids one after
	// another. Zero: when Wait is called.
	Since time.Time
	// Lead is how long before the deadline of its context a caller reads its fallback. With
	// less than twice Lead left, it does so after half of that time. 0: it has read it before.
	Lead time.Duration
}

func (p Patience) fallback() (fallback any, ok bool) {
	if p.Fallback == nil {
		return fallback, false
	}
	return p.Fallback()
}

// alarms has the timers at which a waiting caller calls Patience.Fallback. Either may be nil.
type alarms struct{ soft, lead *time.Timer }

func (p Patience) alarms(ctx context.Context) (a alarms) {
	if p.Fallback == nil {
		return a
	}
	if p.SoftTimeout > 0 {
		remains := p.SoftTimeout
		if !p.Since.IsZero() {
			remains = max(remains-time.Since(p.Since), 0)
		}
		a.soft = time.NewTimer(remains)
	}
	if deadline, ok := ctx.Deadline(); ok && p.Lead > 0 {
		remains := time.Until(deadline)
		a.lead = time.NewTimer(remains - min(p.Lead, remains/2))
	}
	return a
}

func (a alarms) stop() {
	for _, timer := range []*time.Timer{a.soft, a.lead} {
		if timer != nil {
			timer.Stop()
		}
	}
}

// ring returns the channel of timer, nil if timer is nil.
func ring(timer *time.Timer) <-chan time.Time {
	if timer == nil {
		return nil
	}
	return timer.C
}
