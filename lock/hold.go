package lock

import (
	"errors"
	"log/slog"
	"time"
)

// A hold is one lock that Redis has granted to us, from the grant to the release.
type hold struct {
	target
	owner          string
	fence          int64
	lease          time.Duration
	renewed        bool // not with NoRenewal
	replicas       int
	replicaTimeout time.Duration
	hooks          *Hooks
	log            *slog.Logger
	taken          time.Time
	k              *keeper

	// guarded by keeper.mu
	grip     *grip     // whose lock it is
	ends     int64     // the end of the lease on the server's clock, at least
	deadline time.Time // before which the server cannot give the lock away
	last     time.Time // when renewals stop; zero: never
	next     time.Time // of the next renewal
	busy     bool      // a renewal is under way
	kept     bool      // the keeper has it
	index    int       // in the keeper's heap
	err      error     // why it was lost
}

func newHold(t *target, o *Options, owner string, r reply) *hold {
	h := &hold{
		target: *t, owner: owner, fence: r.n[0], ends: r.n[1], lease: o.Lease, renewed: !o.NoRenewal,
		replicas: o.Replicas, replicaTimeout: o.ReplicaTimeout, hooks: &o.Hooks, log: o.Logger, taken: r.sent,
	}
	if o.MaxHold > 0 {
		h.last = r.sent.Add(o.MaxHold)
	}
	h.count(r.sent, o.Lease)
	return h
}

// count sets the times of a lease whose command was sent at a moment before which
// the server cannot have seen it: so its end here comes before the one there, by
// what the two clocks may differ in speed besides.
func (h *hold) count(sent time.Time, lease time.Duration) {
	h.deadline = sent.Add(lease - max(lease/100, 10*time.Millisecond))
	h.next = sent.Add(h.lease / 3)
}

// left is the time until deadline by the clock that says less: the monotonic one
// stands still while a machine is suspended, and the wall clock may be set back.
func left(deadline, now time.Time) time.Duration {
	return min(deadline.Sub(now), deadline.Round(0).Sub(now.Round(0)))
}

// at is when the keeper has to look at the hold.
func (h *hold) at() time.Time {
	if h.renewable() {
		return h.next
	}
	return h.deadline
}

func (h *hold) renewable() bool {
	return h.renewed && !h.busy && h.next.Before(h.deadline) && (h.last.IsZero() || h.next.Before(h.last))
}

// due tells whether there is something to do at the time now. A renewal may come a
// little early, so that many share a round trip.
func (h *hold) due(now time.Time) bool {
	if h.renewable() {
		now = now.Add(h.lease / 60)
	}
	return !h.at().After(now)
}

// lose ends what the hold was for.
func (h *hold) lose(cause error) {
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	h.loseLocked(cause)
}

func (h *hold) loseLocked(cause error) {
	if h.err != nil {
		return
	}
	h.err = lost(cause)
	h.k.drop(h)
	if h.grip != nil {
		h.grip.lose(h.err)
	}
	if !errors.Is(cause, ErrClosed) {
		h.noteLoss(cause)
	}
	if h.hooks.Lost != nil {
		go h.hooks.Lost(h.name, h.err) // outside the mutex
	}
}

// holdHeap orders holds by when they need to be looked at.
type holdHeap []*hold

func (q holdHeap) Len() int           { return len(q) }
func (q holdHeap) Less(i, j int) bool { return q[i].at().Before(q[j].at()) }
func (q holdHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *holdHeap) Push(x any) {
	h := x.(*hold)
	h.index = len(*q)
	*q = append(*q, h)
}

func (q *holdHeap) Pop() any {
	old := *q
	h := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return h
}
