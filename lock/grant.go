package lock

import (
	"sync/atomic"
	"time"
)

// A grant is one lock that Redis has granted to us, from then until it is given
// back. A Lease has one, that of LockAll several.
type grant struct {
	target
	owner   string
	fence   int64
	o       *Options    // of the caller who has it
	granted time.Time   // when the command was sent by which Redis granted it
	taken   time.Time   // since when this caller has it: later, if it was passed on
	told    atomic.Bool // it is a caller's, and no grant that nobody wants: the hooks know of it

	// Guarded by watchdog.mu, the mutex of the watchdog that has the grant.
	spare    int          // so many fences after its own are its own too, see cohort.go
	acq      *acquisition // nil until there is a Lease
	ends     int64        // the end of the lease by the server's clock (ms), at the earliest
	deadline time.Time    // before which the server cannot give the lock away
	last     time.Time    // when renewals stop; zero: never
	next     time.Time    // when the next renewal is due
	renewing bool         // a renewal is on its way
	watched  bool         // it stands in the watchdog's heap
	index    int          // there
	err      error        // why it was lost
}

func newGrant(t *target, o *Options, owner string, got granted) *grant {
	g := &grant{target: *t, owner: owner, fence: got.fence, o: o, granted: got.sent, taken: got.sent, ends: got.ends}
	if o.MaxHold > 0 {
		g.last = got.sent.Add(o.MaxHold)
	}
	g.setDeadline(got.sent, o.Lease)
	return g
}

// setDeadline sets until when the holder may believe in a lease of this length. It
// counts from when the command was sent, not from its answer:
//
//  1. this process sends the command             sent
//  2. Redis starts the lease                     ends there: now there + lease
//  3. the answer arrives, perhaps much later
//
// Counted from 3 the holder would go on after Redis has given the lock to another;
// counted from 1 its lease ends before the one in Redis. The margin covers clocks
// that run at different speeds.
func (g *grant) setDeadline(sent time.Time, lease time.Duration) {
	g.deadline = sent.Add(lease - max(lease/100, 10*time.Millisecond))
	g.next = sent.Add(g.o.Lease / 3)
}

// left is the time until deadline by the clock that says less. The monotonic clock
// stands still while a machine is suspended, and the wall clock may be set back.
func left(deadline, now time.Time) time.Duration {
	return min(deadline.Sub(now), deadline.Round(0).Sub(now.Round(0)))
}

// nextLook is when the watchdog has to look at the grant. As for all that follows,
// the caller holds watchdog.mu.
func (g *grant) nextLook() time.Time {
	if g.renewable() {
		return g.next
	}
	return g.deadline
}

func (g *grant) renewable() bool {
	return !g.o.NoRenewal && !g.renewing && g.next.Before(g.deadline) && (g.last.IsZero() || g.next.Before(g.last))
}

// due reports whether there is something to do at the time now. A renewal may come a
// little early, so that many share a round trip.
func (g *grant) due(now time.Time) bool {
	if g.renewable() {
		now = now.Add(g.o.Lease / 60)
	}
	return !g.nextLook().After(now)
}

// expired reports whether the deadline has passed.
func (g *grant) expired(now time.Time) bool { return left(g.deadline, now) <= 0 }

// stopRenewing lets the grant end at the time last, if it does not end before.
func (g *grant) stopRenewing(last time.Time) {
	if g.last.IsZero() || last.Before(g.last) {
		g.last = last
	}
}

// A grantHeap orders grants by when the watchdog has to look at them.
type grantHeap []*grant

func (q grantHeap) Len() int           { return len(q) }
func (q grantHeap) Less(i, j int) bool { return q[i].nextLook().Before(q[j].nextLook()) }
func (q grantHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push is called by container/heap.
func (q *grantHeap) Push(x any) {
	g := x.(*grant)
	g.index = len(*q)
	*q = append(*q, g)
}

// Pop is called by container/heap.
func (q *grantHeap) Pop() any {
	old := *q
	g := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return g
}
