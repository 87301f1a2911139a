package lock

import (
	"container/heap"
	"context"
	"math"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/contain"
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
		replicas: o.Replicas, replicaTimeout: o.ReplicaTimeout, hooks: &o.Hooks, taken: r.sent,
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
	if h.hooks.Lost != nil {
		go h.hooks.Lost(h.name, h.err) // outside the mutex
	}
}

// A keeper renews the leases of a Locker and ends the contexts of those that are
// lost, in time even if Redis is silent. It is one goroutine, besides the round
// trips under way, each for many leases.
type keeper struct {
	store server
	kick  chan struct{}
	ctx   context.Context
	end   context.CancelFunc
	done  sync.WaitGroup

	mu    sync.Mutex // guards what follows, and all holds and grips
	heap  holdHeap
	sleep time.Time // until when the keeper sleeps
}

const (
	wallCheck  = 250 * time.Millisecond // at the latest, a jump of the clocks is noticed
	maxRenewed = 256                    // leases in one round trip
)

func newKeeper(s server) *keeper {
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeper{store: s, kick: make(chan struct{}, 1), ctx: ctx, end: cancel}
	k.done.Go(k.run)
	return k
}

func (k *keeper) stop() {
	k.end()
	k.done.Wait()
}

func (k *keeper) add(h *hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h.k, h.kept = k, true
	heap.Push(&k.heap, h)
	if k.sleep.IsZero() || h.at().Before(k.sleep) {
		k.wake()
	}
}

func (k *keeper) wake() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// remove ends the care for a hold that is given back.
func (k *keeper) remove(h *hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(h)
}

func (k *keeper) drop(h *hold) {
	if h.kept {
		h.kept = false
		heap.Remove(&k.heap, h.index)
	}
}

func (k *keeper) all() []*hold {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]*hold(nil), k.heap...)
}

// renewAll makes every lease due, since the server may have forgotten them.
func (k *keeper) renewAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for _, h := range k.heap {
		h.next = now
	}
	heap.Init(&k.heap)
	k.wake()
}

func (k *keeper) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	before := time.Now()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-k.kick:
		case <-timer.C:
		}
		now := time.Now()
		jumped := now.Round(0).Sub(before.Round(0)) - now.Sub(before)
		before = now
		due, next := k.look(now, jumped > 5*time.Millisecond)
		for len(due) > 0 {
			n := min(len(due), maxRenewed)
			if due[0].replicas > 0 {
				n = 1
			}
			k.renew(due[:n])
			due = due[n:]
		}
		timer.Reset(next)
	}
}

// look ends the leases whose time is over, returns those that are to be renewed,
// and how long there is nothing to do.
func (k *keeper) look(now time.Time, jumped bool) (due []*hold, next time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if jumped { // the heap knows the monotonic clock only
		for _, h := range append([]*hold(nil), k.heap...) {
			if left(h.deadline, now) <= 0 {
				h.loseLocked(ErrExpired)
			}
		}
	}
	for len(k.heap) > 0 {
		h := k.heap[0]
		if !h.due(now) {
			break
		}
		if left(h.deadline, now) <= 0 {
			h.loseLocked(ErrExpired)
			continue
		}
		h.busy = true
		heap.Fix(&k.heap, 0)
		if h.replicas > 0 { // one at a time, so it goes to the front
			due = append([]*hold{h}, due...)
		} else {
			due = append(due, h)
		}
	}
	if len(k.heap) == 0 {
		k.sleep = time.Time{}
		return due, math.MaxInt64
	}
	next = min(k.heap[0].at().Sub(now), wallCheck)
	k.sleep = now.Add(next)
	return due, next
}

// renew renews leases in one round trip, without waiting for it.
func (k *keeper) renew(due []*hold) {
	k.done.Add(1)
	go contain.Call(func() error { k.renewNow(due); return nil }, func(error) { k.done.Done() })
}

func (k *keeper) renewNow(due []*hold) {
	patience := time.Duration(math.MaxInt64)
	for _, h := range due {
		patience = min(patience, max(h.lease/6, 20*time.Millisecond))
	}
	ctx, cancel := context.WithTimeout(k.ctx, patience)
	defer cancel()
	if len(due) == 1 {
		lease := k.term(due[0])
		r, err := k.store.renew(ctx, due[0], lease, 0, "")
		k.learn(due[0], lease, r, err)
		return
	}
	terms := make([]time.Duration, len(due))
	for i, h := range due {
		terms[i] = k.term(h)
	}
	for i, out := range k.store.renewMany(ctx, due, terms) {
		k.learn(due[i], terms[i], out.reply, out.err)
	}
}

// term is the length of the renewed lease, which MaxHold may cut.
func (k *keeper) term(h *hold) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.last.IsZero() {
		return h.lease
	}
	return max(min(h.lease, time.Until(h.last)), minLease)
}

// learn takes in the outcome of a renewal.
func (k *keeper) learn(h *hold, lease time.Duration, r reply, err error) {
	k.mu.Lock()
	h.busy = false
	now := time.Now()
	switch {
	case !h.kept: // released or lost meanwhile
		k.mu.Unlock()
		return
	case err == nil && r.what == "ok" && r.acked >= h.replicas:
		h.ends = r.n[0]
		h.count(r.sent, lease)
	case err == nil && r.what != "ok":
		h.loseLocked(verdict(r.what))
	default: // what the server has done we do not know: the deadline stays
		if err == nil {
			err = ErrNotReplicated
		}
		h.next = now.Add(min(max(h.lease/20, 10*time.Millisecond), time.Second))
	}
	if h.kept {
		heap.Fix(&k.heap, h.index)
		if h.at().Before(k.sleep) {
			k.wake()
		}
	}
	remaining := left(h.deadline, now)
	if h.err != nil {
		err = h.err
	}
	k.mu.Unlock()
	if h.hooks.Renewed != nil {
		h.hooks.Renewed(h.name, max(remaining, 0), err)
	}
}

// verdict is the cause of a loss as a script tells it.
func verdict(what string) error {
	switch what {
	case "expired":
		return ErrExpired
	case "lost":
		return ErrStateLost
	case "released":
		return ErrNotHeld
	}
	return ErrTakenOver
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
