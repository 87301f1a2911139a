package lock

import (
	"container/heap"
	"context"
	"math"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
)

// A keeper renews the leases of a Locker and ends the contexts of those that are
// lost, in time even if Redis is silent. It is one goroutine, besides the round
// trips under way, each for many leases.
type keeper struct {
	store   server
	journal *logonce.Log
	kick    chan struct{}
	ctx     context.Context
	end     context.CancelFunc
	done    sync.WaitGroup

	mu    sync.Mutex // guards what follows, and all holds and grips
	heap  holdHeap
	sleep time.Time // until when the keeper sleeps; zero: until it is woken
	idle  bool      // there was nothing to do when it was awake last
}

const (
	wallCheck  = 250 * time.Millisecond // at the latest, a jump of the clocks is noticed
	maxRenewed = 256                    // leases in one round trip
)

func newKeeper(s server, j *logonce.Log) *keeper {
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeper{store: s, journal: j, kick: make(chan struct{}, 1), ctx: ctx, end: cancel}
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
		due, next := k.look(now, jumped(before, now))
		before = now
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

// jumped tells whether the wall clock has gone further than the monotonic one: it
// was set, or the machine was suspended.
func jumped(before, now time.Time) bool {
	return now.Round(0).Sub(before.Round(0))-now.Sub(before) > 5*time.Millisecond
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
	switch {
	case len(k.heap) > 0:
		k.idle, next = false, min(k.heap[0].at().Sub(now), wallCheck)
	case !k.idle:
		// Where a lock is taken and given back all the time, the next one shall not
		// have to wake us.
		k.idle, next = true, wallCheck
	default:
		k.sleep = time.Time{}
		return due, math.MaxInt64
	}
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
	failed := err != nil && h.err == nil
	k.mu.Unlock()
	if failed {
		h.noteFailure(err, remaining)
	}
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
