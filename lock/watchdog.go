package lock

import (
	"container/heap"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// A watchdog renews the leases of a Locker, and ends the contexts of lost leases in time,
// even if Redis does not reply. It is one goroutine, and one more for each round trip in
// flight, which renews many leases.
//
// A grant is in one of three states:
//
//	resting ──next comes──▶ renewing ───a reply───▶ resting, or lost
//	   └────────deadline passes─────────┴─────────▶ lost
//
// A reply that confirms the lease moves the deadline. No reply, or one that too few
// replicas have confirmed, does not: Redis may or may not have renewed the lease, so the
// holder relies on the deadline that was confirmed last.
type watchdog struct {
	store  store
	log    *logonce.Log
	counts *counters
	kick   chan struct{} // wakes the goroutine
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	// mu guards the fields below, and those fields of grants, acquisitions and leases
	// that say so. It is never held during a round trip or a hook.
	mu     sync.Mutex
	grants grantHeap
	sleeps time.Time // until when the goroutine sleeps; zero: until it is woken
	idle   bool      // there was nothing to do when it was awake last
}

const (
	wallCheck  = 250 * time.Millisecond // how long a jump of the clocks may go unnoticed
	maxRenewed = 256                    // leases in one round trip
)

func newWatchdog(s store, log *logonce.Log, counts *counters) *watchdog {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watchdog{store: s, log: log, counts: counts, kick: make(chan struct{}, 1), ctx: ctx, cancel: cancel}
	w.done.Go(w.run)
	return w
}

func (w *watchdog) stop() {
	w.cancel()
	w.done.Wait()
}

// add puts a grant under the watchdog's care.
func (w *watchdog) add(g *grant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g.watched = true
	heap.Push(&w.grants, g)
	w.wakeFor(g)
}

// remove ends the care for a grant that is being released.
func (w *watchdog) remove(g *grant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(g)
}

// drop is remove for callers that hold mu.
func (w *watchdog) drop(g *grant) {
	if g.watched {
		g.watched = false
		heap.Remove(&w.grants, g.index)
	}
}

// wakeFor wakes the goroutine if it would sleep too long for g. The caller holds mu.
func (w *watchdog) wakeFor(g *grant) {
	if w.sleeps.IsZero() || g.nextLook().Before(w.sleeps) {
		w.idle = false // it looks once more before it sleeps until woken, see sleep
		wait.Wake(w.kick)
	}
}

// all returns the grants that are cared for.
func (w *watchdog) all() []*grant {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.grants)
}

// has reports whether a grant of this owner is cared for.
func (w *watchdog) has(owner string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.grants, func(g *grant) bool { return g.owner == owner })
}

// firstLoss returns the error of the first of grants that was lost, nil if none was.
func (w *watchdog) firstLoss(grants []*grant) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range grants {
		if g.err != nil {
			return g.err
		}
	}
	return nil
}

// renewAll makes every lease due, since the server may have forgotten them.
func (w *watchdog) renewAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, g := range w.grants {
		g.next = now
	}
	heap.Init(&w.grants)
	wait.Wake(w.kick)
}

// doubt reads whether the leases on the lock with this record are held, and ends
// those that are not. It changes nothing else.
func (w *watchdog) doubt(ctx context.Context, record string) {
	for _, g := range w.all() {
		if g.record() != record {
			continue
		}
		r, err := w.store.change(ctx, renewal{grant: g})
		if err != nil || r.answer == answerOK {
			continue // without a reply, the next renewal or the deadline decides
		}
		w.mu.Lock()
		for _, held := range slices.Clone(w.grants) { // g may have been passed on or released meanwhile
			if held.owner == g.owner {
				w.loseLocked(held, r.answer.cause())
			}
		}
		w.mu.Unlock()
	}
}

// lose ends a grant and the lease that has it.
func (w *watchdog) lose(g *grant, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loseLocked(g, cause)
}

// loseLocked is lose for callers that hold mu.
func (w *watchdog) loseLocked(g *grant, cause error) {
	if g.err != nil || !g.watched { // it was lost before, passed on or released
		return
	}
	g.err = lossError(cause)
	w.drop(g)
	if g.acq != nil {
		g.acq.lose(g.err)
	}
	if !errors.Is(cause, ErrClosed) {
		w.counts.losses.Add(1)
		w.logLoss(g, cause)
	}
	if g.o.Hooks.Lost != nil {
		lost := g.err
		go tell(w.log, g, func() { g.o.Hooks.Lost(g.name, lost) }) // outside the mutex
	}
}

func (w *watchdog) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	before := time.Now()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.kick:
		case <-timer.C:
		}
		now := time.Now()
		due, next := w.look(now, jumped(before, now))
		before = now
		for len(due) > 0 {
			n := min(len(due), maxRenewed)
			if due[0].o.confirm().Wanted() {
				n = 1
			}
			w.renew(due[:n])
			due = due[n:]
		}
		timer.Reset(next)
	}
}

// jumped reports whether the wall clock has gone further than the monotonic one: it
// was set, or the machine was suspended.
func jumped(before, now time.Time) bool {
	return now.Round(0).Sub(before.Round(0))-now.Sub(before) > 5*time.Millisecond
}

// look ends the leases whose deadline has passed, and returns the grants to renew now and
// how long there is nothing else to do.
func (w *watchdog) look(now time.Time, jumped bool) (due []*grant, next time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if jumped { // the heap is ordered by the monotonic clock alone
		w.expire(slices.Clone(w.grants), now)
	}
	for len(w.grants) > 0 && w.grants[0].due(now) {
		g := w.grants[0]
		if g.expired(now) {
			w.loseLocked(g, ErrExpired)
			continue
		}
		g.renewing = true
		heap.Fix(&w.grants, 0)
		if g.o.confirm().Wanted() { // it has a round trip of its own (see run), so it goes to the front
			due = append([]*grant{g}, due...)
		} else {
			due = append(due, g)
		}
	}
	return due, w.sleep(now)
}

// expire ends the grants whose deadline has passed. The caller holds mu.
func (w *watchdog) expire(grants []*grant, now time.Time) {
	for _, g := range grants {
		if g.expired(now) {
			w.loseLocked(g, ErrExpired)
		}
	}
}

// sleep notes and returns how long there is nothing to do. The caller holds mu.
func (w *watchdog) sleep(now time.Time) (next time.Duration) {
	switch {
	case len(w.grants) > 0:
		w.idle, next = false, min(w.grants[0].nextLook().Sub(now), wallCheck)
	case !w.idle:
		// One look more before we sleep until woken: a lock that is taken and given
		// back all the time need not wake us each time.
		w.idle, next = true, wallCheck
	default:
		w.sleeps = time.Time{}
		return math.MaxInt64
	}
	w.sleeps = now.Add(next)
	return next
}

// renew renews leases in one round trip, without waiting for it.
func (w *watchdog) renew(due []*grant) {
	w.done.Add(1)
	go contain.Call(func() error { w.renewNow(due); return nil }, func(error) { w.done.Done() })
}

func (w *watchdog) renewNow(due []*grant) {
	timeout := time.Duration(math.MaxInt64)
	renewals := make([]renewal, len(due))
	for i, g := range due {
		timeout = min(timeout, max(g.o.Lease/6, 20*time.Millisecond))
		renewals[i] = renewal{grant: g, lease: w.length(g)}
	}
	ctx, cancel := context.WithTimeout(w.ctx, timeout)
	defer cancel()
	for i, r := range w.store.renew(ctx, renewals) {
		w.learn(renewals[i], r)
	}
}

// length returns for how long to renew a lease: Options.Lease, or less because of MaxHold.
func (w *watchdog) length(g *grant) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if g.last.IsZero() {
		return g.o.Lease
	}
	return max(min(g.o.Lease, time.Until(g.last)), minLease)
}

// learn applies the result of a renewal to its grant, counts it and logs a failure.
func (w *watchdog) learn(r renewal, got renewed) {
	g := r.grant
	remaining, still, err := w.settle(r, got)
	if !still {
		return
	}
	switch {
	case err == nil:
		w.counts.renewals.Add(1)
	case !errors.Is(err, ErrLost):
		w.counts.renewalErrors.Add(1)
		w.logFailure(g, err, remaining)
	}
}

// settle applies the result of a renewal to its grant, and returns how long the lease lasts
// and why the renewal did not succeed. It reports false, and changes nothing, if the grant
// was released, passed on or lost meanwhile.
func (w *watchdog) settle(r renewal, got renewed) (remaining time.Duration, still bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g, now := r.grant, time.Now()
	g.renewing = false
	if !g.watched {
		return 0, false, nil
	}
	switch {
	case got.err != nil: // Redis may have renewed the lease or not, so the deadline stays
		err = got.err
	case got.answer != answerOK:
		w.loseLocked(g, got.answer.cause())
		return left(g.deadline, now), true, g.err
	case got.confirmed < g.o.Replicas:
		err = ErrNotReplicated
	default:
		g.ends = got.ends
		g.setDeadline(got.sent, r.lease)
	}
	if err != nil {
		g.next = now.Add(min(max(g.o.Lease/20, 10*time.Millisecond), time.Second))
	}
	heap.Fix(&w.grants, g.index)
	w.wakeFor(g)
	return left(g.deadline, now), true, err
}
