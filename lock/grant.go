package lock

import (
	"sync/atomic"
	"time"
)

// A grant is one lock that Redis has granted to this process, until it is released.
// A Lease has one grant, a Lease of LockAll several.
type grant struct {
	target
	owner   string
	fence   int64
	o       *Options    // options of the caller that has it
	granted time.Time   // when the command that Redis granted it to was sent
	taken   time.Time   // since when this caller has it: later than granted if it was passed on
	told    atomic.Bool // a caller has got it, so its release calls Hooks.Released

	// Guarded by watchdog.mu, the mutex of the watchdog that has the grant.
	spare    int          // how many callers it may still be passed on to, see cohort.go
	acq      *acquisition // nil until there is a Lease
	ends     int64        // the earliest end of the lease, by the server's clock (ms)
	deadline time.Time    // until then the server cannot grant the lock to another
	last     time.Time    // when renewals stop; zero: never
	next     time.Time    // when the next renewal is due
	renewing bool         // a renewal is in flight
	watched  bool         // it is in the watchdog's heap
	index    int          // its index in the heap
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

// setDeadline sets until when the holder may rely on a lease of this length. It counts
// from when the command was sent, not from its reply:
//
//  1. this process sends the command             sent
//  2. Redis starts the lease                     ends in Redis: its now + lease
//  3. the reply arrives, perhaps much later
//
// Counted from 3 the holder would go on after Redis has granted the lock to another;
// counted from 1 its lease ends before the lease in Redis. The margin covers clocks
// that run at different speeds. The caller holds watchdog.mu, or has g alone.
func (g *grant) setDeadline(sent time.Time, lease time.Duration) {
	g.deadline = sent.Add(lease - max(lease/100, 10*time.Millisecond))
	g.next = sent.Add(g.o.Lease / 3)
}

// left returns the time until deadline by the clock that says less: the monotonic clock
// stops while a machine is suspended, and the wall clock may be set back.
func left(deadline, now time.Time) time.Duration {
	return min(deadline.Sub(now), deadline.Round(0).Sub(now.Round(0)))
}

// nextLook returns when the watchdog has to look at the grant next. The caller holds
// watchdog.mu.
func (g *grant) nextLook() time.Time {
	if g.renewable() {
		return g.next
	}
	return g.deadline
}

// renewable reports whether the next look is for a renewal. The caller holds watchdog.mu.
func (g *grant) renewable() bool {
	return !g.o.NoRenewal && !g.renewing && g.next.Before(g.deadline) && (g.last.IsZero() || g.next.Before(g.last))
}

// due reports whether the watchdog has to look at the grant now. A renewal may come a
// little early, so that many share a round trip. The caller holds watchdog.mu.
func (g *grant) due(now time.Time) bool {
	if g.renewable() {
		now = now.Add(g.o.Lease / 60)
	}
	return !g.nextLook().After(now)
}

// expired reports whether the deadline has passed. The caller holds watchdog.mu, or has g alone.
func (g *grant) expired(now time.Time) bool { return left(g.deadline, now) <= 0 }

// stopRenewing stops renewals at the time last, if they do not stop before. The caller
// holds watchdog.mu.
func (g *grant) stopRenewing(last time.Time) {
	if g.last.IsZero() || last.Before(g.last) {
		g.last = last
	}
}

// A grantHeap orders grants by nextLook. It is guarded by watchdog.mu.
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
