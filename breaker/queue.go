package breaker

import (
	"context"
	"math"
	"sync"
	"time"
)

// A queue has the places of a Breaker, and the calls that wait for one.
//
// It serves bursts and sheds standing overload. A call is let in if its turn can be
// expected in time: within QueueTimeout, and early enough before the deadline of its
// callers for its function to return. Else it is refused at once, while its caller can
// still do something about it. How long the wait is likely to be follows from how many
// wait before it and from how long functions keep their places (Little's law), see
// pace. A bound on the wait alone does neither: a short one fails bursts that would be
// over in a second, and behind a long one all callers wait for most of their time and
// are then served too late to be of use (Maurer, "Fail at Scale", ACM Queue 2015).
//
// Calls wait first in, first out. Beside the calls from outside there are inner calls,
// which a running function makes or waits for, see holder. They come before the others
// and are not refused: until they end, the place of that function is of no use.
type queue struct {
	name     string
	limits   [classes]int // limits[Normal] is that of all classes together
	maxQueue int
	longest  time.Duration // QueueTimeout; negative: nobody waits
	capped   bool          // longest holds for callers with a deadline too

	mu      sync.Mutex // guards what follows
	shut    error      // why nobody may wait now; nil: the breaker is closed
	taken   [classes]int
	active  [classes]int // of the functions, also those of inner calls: those that do not wait for others
	paces   [classes]pace
	waiting [classes]line // calls from outside
	inner   line          // inner calls, of all classes
	resumed line          // functions that have waited for others and go on
	checked time.Duration // the service time by which those who wait were last looked at
	counts  struct {
		waited, shed uint64
		waitTime     time.Duration
	}
}

func newQueue(o Options) *queue {
	if o.MaxConcurrent < 0 && o.MaxDegraded < 0 && o.MaxBackground < 0 {
		return nil
	}
	q := &queue{name: o.Name, maxQueue: o.MaxQueue, longest: o.QueueTimeout, capped: o.capped}
	for class, limit := range map[Class]int{Normal: o.MaxConcurrent, Degraded: o.MaxDegraded, Background: o.MaxBackground} {
		q.limits[class] = limit
		if limit < 0 {
			q.limits[class] = math.MaxInt
		}
	}
	if o.MaxQueue < 0 {
		q.maxQueue = math.MaxInt
	}
	return q
}

// acquire takes a place for a call and returns its holder. The error matches ErrLimited,
// and that of the callers if they have left, or is that of shut.
func (q *queue) acquire(ctx context.Context, c Call) (*holder, error) {
	h := &holder{queue: q, class: c.Class}
	if c.Class != Background {
		h.outer = holderOf(ctx)
	}
	if q == nil {
		return h, nil
	}
	inner := h.outer.runs(q) || c.wantedInside()
	q.mu.Lock()
	if q.fits(c.Class, inner) {
		q.take(h, inner)
		q.mu.Unlock()
		return h, nil
	}
	w := &waiter{call: c, holder: h, ready: make(chan error, 1)}
	if err := q.enlist(w, inner); err != nil {
		q.mu.Unlock()
		return nil, err
	}
	q.mu.Unlock()
	return h, q.await(ctx, w)
}

// wantedInside reports whether a function waits for the call.
func (c Call) wantedInside() bool {
	select {
	case <-c.Inner:
		return true
	default:
		return false
	}
}

// fits reports whether a call of class finds a place now. A function that waits for
// inner calls has a place that only they may use.
func (q *queue) fits(class Class, inner bool) bool {
	fit := func(of Class) bool {
		return q.active[of] < q.limits[of] && (inner || q.taken[of] < q.limits[of])
	}
	return fit(Normal) && (class == Normal || fit(class))
}

// take gives h its place. The caller holds q.mu.
func (q *queue) take(h *holder, inner bool) {
	h.inner, h.began = inner, time.Now()
	q.each(h.class, func(of Class) {
		q.active[of]++
		if !inner {
			q.taken[of]++
			q.paces[of].began(h.began)
		}
	})
}

// release gives the place of h back, whose function is over.
func (q *queue) release(h *holder) { q.leave(h, true) }

// giveBack gives the place of h back, whose function was not called.
func (q *queue) giveBack(h *holder) { q.leave(h, false) }

func (q *queue) leave(h *holder, ran bool) {
	if q == nil {
		h.over.Store(true)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	h.over.Store(true) // not before: a Pause of a goroutine that h leaves behind would settle with the wrong state
	now := time.Now()
	q.each(h.class, func(of Class) {
		if h.pauses == 0 {
			q.active[of]--
		}
		if !h.inner {
			q.taken[of]--
			q.paces[of].left(h.began)
			if ran {
				q.paces[of].ended(now.Sub(h.began))
			}
		}
	})
	q.dispatch(now)
}

// each calls f for the limits that a call of class is under.
func (q *queue) each(class Class, f func(Class)) {
	for _, of := range [...]Class{Normal, class} {
		if q.limits[of] != math.MaxInt {
			f(of)
		}
		if class == Normal {
			return
		}
	}
}

// enlist lets a call wait, or refuses it. The caller holds q.mu.
func (q *queue) enlist(w *waiter, inner bool) error {
	class, now := w.call.Class, time.Now()
	w.since = now
	switch {
	case q.shut != nil:
		return q.shut
	case class == Background || q.longest < 0:
		return q.refusal(w, refusal{})
	case inner:
		q.inner.push(w)
		return nil
	case q.waiting[class].len >= q.maxQueue:
		return q.refusal(w, refusal{full: true})
	}
	q.check(now)
	if err := q.inTime(w, q.ahead(class), now, false); err != nil {
		return err
	}
	q.waiting[class].push(w)
	return nil
}

// ahead returns how many calls wait before the next one of class, as far as they will
// get places that it could have.
func (q *queue) ahead(class Class) int {
	if class == Degraded {
		return q.waiting[Degraded].len
	}
	return q.waiting[Normal].len + min(q.waiting[Degraded].len, q.limits[Degraded])
}

// margin is by how much the wait of a call that is let in may turn out to be longer
// than expected. Without it half of those who are refused hear so only when they have
// waited, since no estimate is exact.
const margin = 1.25

// hopeless is the same for a call that waits already. A refusal cannot be taken back, and
// a pace that is slow for a moment, as at the start of a burst on a busy machine, may
// recover: so it is refused only if it could be expected to wait twice as long as it has.
const hopeless = 0.5

// inTime returns the refusal of a call whose turn, behind ahead others, cannot be
// expected in time. again is true for a call that waits already. The caller holds q.mu.
func (q *queue) inTime(w *waiter, ahead int, now time.Time, again bool) error {
	p := &q.paces[w.call.Class]
	if q.limits[w.call.Class] == math.MaxInt {
		p = &q.paces[Normal]
	}
	service := p.service(now)
	wait, factor := p.wait(ahead, now), margin
	if again { // by what has ended alone: after this process has stood still, all that runs looks old
		service = p.mean
		wait, factor = time.Duration(ahead/max(1, len(p.starts)))*service, hopeless
	}
	r := refusal{expected: wait, service: service}
	r.has = q.longest - now.Sub(w.since)
	has := float64(r.has)
	if deadline, ok := w.call.For.Deadline(); ok {
		// The function takes its time too. Without it those who are let in would be
		// served too late under overload, all of them.
		left := deadline.Sub(now)
		if !q.capped {
			r.has, has = left, math.Inf(1)
		}
		r.has, has = min(r.has, left), min(has, float64(left-r.service))
	}
	// A function may have come to wait for the call: it is about to be an inner one.
	if factor*float64(wait) <= has || w.call.wantedInside() {
		return nil
	}
	return q.refusal(w, r)
}

// dispatch hands the places that are free to those who wait. The caller holds q.mu.
func (q *queue) dispatch(now time.Time) {
	q.resumed.each(func(w *waiter) {
		if q.fits(w.call.Class, true) {
			q.resume(w.holder)
			q.resumed.end(w, nil)
		}
	})
	q.inner.each(func(w *waiter) {
		if q.fits(w.call.Class, true) {
			q.seat(w, &q.inner, now)
		}
	})
	q.check(now)
	for w := q.next(); w != nil; w = q.next() {
		line := &q.waiting[w.call.Class]
		if err := q.late(w, now); err != nil {
			line.end(w, err)
			continue
		}
		q.seat(w, line, now)
	}
}

// seat gives the first of a line its place.
func (q *queue) seat(w *waiter, line *line, now time.Time) {
	q.counts.waited++
	q.counts.waitTime += now.Sub(w.since)
	q.take(w.holder, line == &q.inner)
	line.end(w, nil)
}

// late returns the refusal of a call whose turn has come and that would end after its
// callers have gone. It allows for a function that takes half as long as usual. The
// caller holds q.mu.
func (q *queue) late(w *waiter, now time.Time) error {
	deadline, ok := w.call.For.Deadline()
	service := q.paces[Normal].service(now)
	if left := deadline.Sub(now); ok && left < service/2 && !w.call.wantedInside() {
		return q.refusal(w, refusal{expected: now.Sub(w.since), service: service, has: left})
	}
	return nil
}

// next returns the call that has waited for longest of those that fit.
func (q *queue) next() *waiter {
	var first *waiter
	for class := range q.waiting {
		w := q.waiting[class].first
		if w != nil && q.fits(Class(class), false) && (first == nil || w.since.Before(first.since)) {
			first = w
		}
	}
	return first
}

// check looks at those who wait again when functions take longer than they did at the
// last look: by a quarter, as the estimate is never still. It refuses those whose turn
// can no longer be expected in time. The caller holds q.mu.
func (q *queue) check(now time.Time) {
	service := q.paces[Normal].mean
	if service <= q.checked+q.checked/4 {
		q.checked = min(q.checked, service)
		return
	}
	q.checked = service
	for class := range q.waiting {
		line, ahead := &q.waiting[class], 0
		line.each(func(w *waiter) {
			if err := q.inTime(w, ahead, now, true); err != nil {
				line.end(w, err)
				return
			}
			ahead++
		})
	}
}

// await waits until w has its place or is refused, or until its callers leave.
func (q *queue) await(ctx context.Context, w *waiter) error {
	timer := time.NewTimer(q.longest)
	defer timer.Stop()
	inner := w.call.Inner
	for {
		select {
		case err := <-w.ready:
			return err
		case <-inner:
			inner = nil
			q.promote(w)
		case <-w.call.Withdraw:
			return q.giveUp(w, func() error { return ErrWithdrawn })
		case <-ctx.Done():
			return q.giveUp(w, func() error { return left(ctx) })
		case <-w.call.For.Done():
			return q.giveUp(w, func() error { return left(w.call.For) })
		case <-timer.C:
			if q.mayWaitOn(w) {
				timer.Reset(q.longest) // a caller without a deadline may come meanwhile
				continue
			}
			return q.giveUp(w, func() error { return q.refusal(w, refusal{waited: true}) })
		}
	}
}

// giveUp ends the waiting of w with an error, unless it has just ended otherwise.
func (q *queue) giveUp(w *waiter, err func() error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.line == nil {
		return <-w.ready
	}
	w.line.remove(w)
	return err()
}

// promote makes a call from outside an inner one.
func (q *queue) promote(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.line != nil && w.line != &q.inner {
		w.line.remove(w)
		q.inner.push(w)
		q.dispatch(time.Now())
	}
}

// mayWaitOn reports whether QueueTimeout is no bound for w.
func (q *queue) mayWaitOn(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, ends := w.call.For.Deadline()
	return w.line == &q.inner || ends && !q.capped
}

// close ends the waiting of all calls, and lets none wait until open is called.
func (q *queue) close(why error) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut = why
	for _, l := range [...]*line{&q.inner, &q.waiting[Normal], &q.waiting[Degraded]} {
		l.each(func(w *waiter) { l.end(w, why) })
	}
}

func (q *queue) open() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut = nil
}

// stats fills in what the queue knows.
func (q *queue) stats(s *Stats) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s.Waiting = q.inner.len + q.waiting[Normal].len + q.waiting[Degraded].len
	s.Service = q.paces[Normal].service(time.Now())
	s.Waited, s.WaitTime, s.Shed = q.counts.waited, q.counts.waitTime, q.counts.shed
}
