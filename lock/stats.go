package lock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Stats is a snapshot of the counters of a Locker and of the Lockers that With makes. Each
// lock of a LockAll, each reader and each permit counts by itself, a LockAny as one, however
// many stripes it tries or waits for. The counters start at zero in New.
type Stats struct {
	Held    int // locks that this process holds now
	Waiting int // calls that have not got their lock yet

	// Calls of Lock, TryLock and the like that have ended, by their end. A call that is
	// refused for its arguments does not count, and Attach changes only Held.
	Acquired uint64 // with the lock
	Refused  uint64 // the lock was taken and the call does not wait, or the work of Once was done
	GaveUp   uint64 // the caller's context ended
	Failed   uint64 // with another error, such as ErrUnavailable

	Waits    uint64        // of these calls, those that found the lock taken, and waited
	HandOffs uint64        // of these waits, those that ended with the lock
	WaitTime time.Duration // of all Waits together

	Renewals      uint64 // renewals that were confirmed
	RenewalErrors uint64 // renewals that were not, and are tried again
	Losses        uint64 // leases that ended without being released

	// Live reports whether messages of hand-offs arrive. Without them waiters poll. Without
	// Redis it is true.
	Live bool
}

// counters holds the counters of Stats.
type counters struct {
	acquired, refused, gaveUp, failed atomic.Uint64
	waits, handOffs                   atomic.Uint64
	waiting                           atomic.Int64 // calls under way that may wait
	waitTime                          atomic.Int64
	renewals, renewalErrors, losses   atomic.Uint64 // by the watchdog
}

// ended counts the end of a call that was to take a lock.
func (c *counters) ended(ctx context.Context, waited bool, took time.Duration, err error) {
	switch {
	case err == nil:
		c.acquired.Add(1)
	case isHeld(err), errors.Is(err, errDone):
		c.refused.Add(1)
	case ctx.Err() != nil:
		c.gaveUp.Add(1)
	default:
		c.failed.Add(1)
	}
	if !waited {
		return
	}
	c.waits.Add(1)
	c.waitTime.Add(int64(took))
	if err == nil {
		c.handOffs.Add(1)
	}
}

// Stats returns a snapshot of the counters. They are read one after another, so while calls
// are in progress they are not all of one moment.
func (l *Locker) Stats() Stats {
	c := l.shared.counts
	return Stats{
		Held: l.shared.watchdog.held(), Waiting: int(c.waiting.Load()),
		Acquired: c.acquired.Load(), Refused: c.refused.Load(), GaveUp: c.gaveUp.Load(), Failed: c.failed.Load(),
		Waits: c.waits.Load(), HandOffs: c.handOffs.Load(), WaitTime: time.Duration(c.waitTime.Load()),
		Renewals: c.renewals.Load(), RenewalErrors: c.renewalErrors.Load(), Losses: c.losses.Load(),
		Live: l.shared.hears(),
	}
}

// held returns the number of grants that the watchdog has.
func (w *watchdog) held() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.grants)
}
