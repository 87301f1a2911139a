package guard

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// A queue counts the places of a Breaker, and has the calls that wait for one, first in,
// first out.
//
// It serves bursts and sheds lasting overload, by Little's law: a call with n others in
// front of it, waiting or running, waits for about n ÷ limit times as long as one function
// takes. If it has less time than that, the queue refuses it at once, while its caller can
// still do something about it. A bound on the wait alone does neither: a short one fails
// bursts that would be over in a second, and with a long one all callers wait for most of
// their time and are then served too late (Maurer, "Fail at Scale", ACM Queue 2015).
type queue struct {
	name     string
	most     [classes]int // limits of Options; most[Normal] is for all classes together
	maxQueue int
	longest  time.Duration // QueueTimeout; negative: no call waits
	capped   bool          // longest applies to callers with a deadline too
	timeout  time.Duration // a function that takes longer counts as if it took this long

	mu      sync.Mutex   // guards what follows
	trial   *trial       // that finds the limit; nil: it is most
	limits  [classes]int // the present ones
	shut    error        // why no call may wait now; nil: the breaker is closed
	taken   [classes]int
	waiting [classes]line
	mean    time.Duration // how long a function keeps its place on average; later ones weigh more
	samples int           // the number of functions in mean, up to window
	counts  struct {
		waited, shed uint64
		waitTime     time.Duration
	}
}

// window is about how many functions the mean covers. With fewer samples the queue refuses no
// call by the mean: the first functions of a burst may be slow for reasons of their own, such
// as connections that are being opened.
const window = 64

func newQueue(o Options, capped bool) *queue {
	if o.MaxConcurrent < 0 && o.MaxDegraded < 0 && o.MaxBackground < 0 {
		return nil
	}
	q := &queue{name: o.Name, maxQueue: o.MaxQueue, longest: o.QueueTimeout, capped: capped, timeout: o.Timeout}
	if o.Timeout < 0 {
		q.timeout = math.MaxInt64
	}
	for class, limit := range map[Class]int{Normal: o.MaxConcurrent, Degraded: o.MaxDegraded, Background: o.MaxBackground} {
		q.most[class] = limit
		if limit < 0 {
			q.most[class] = math.MaxInt
		}
	}
	q.trial, q.limits = newTrial(o), q.most
	if o.MaxQueue < 0 {
		q.maxQueue = math.MaxInt
	}
	return q
}

// acquire takes a place for p, and waits for one if waits is true. Its error is shut, or matches
// ErrLimited and, if ctx has ended, the error of ctx.
func (q *queue) acquire(ctx context.Context, p *Place, waits bool) error {
	p.began = time.Now()
	if q == nil {
		return nil
	}
	q.mu.Lock()
	q.adapt(p.began)
	if q.fits(p.class) {
		q.take(p)
		q.mu.Unlock()
		return nil
	}
	w := &waiter{place: p, since: p.began, ready: make(chan error, 1)}
	err := q.enlist(ctx, w, waits)
	q.mu.Unlock()
	if err != nil {
		return err
	}
	return q.await(ctx, w)
}

// fits reports whether a call of class finds a place now.
func (q *queue) fits(class Class) bool {
	return q.taken[Normal] < q.limits[Normal] && q.taken[class] < q.limits[class]
}

// take takes a place for p. The caller holds q.mu.
func (q *queue) take(p *Place) {
	q.taken[Normal]++
	if p.class != Normal {
		q.taken[p.class]++
	}
	if q.trial != nil {
		p.member = q.trial.begun(p.began, q.taken[Normal])
	}
}

// adapt sets the limits to their present values. If they have risen, waiting calls get places before
// new ones. A timer restores the places that a trial took even if no call starts or ends by then.
// The caller holds q.mu.
func (q *queue) adapt(now time.Time) {
	if q.trial == nil {
		return
	}
	last := q.limits[Normal]
	q.limits[Normal] = q.trial.places(now)
	if most := q.most[Background]; most < math.MaxInt {
		q.limits[Background] = max(1, most*q.usual()/q.most[Normal])
	}
	switch limit := q.limits[Normal]; {
	case limit > last:
		q.dispatch()
	case limit < last && limit < q.usual():
		time.AfterFunc(q.trial.restores().Sub(now), func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.adapt(time.Now())
		})
	}
}

// usual returns the limit outside of trials. The caller holds q.mu.
func (q *queue) usual() int {
	if q.trial == nil {
		return q.limits[Normal]
	}
	return int(q.trial.limit)
}

// notCalled is the duration of a function that was not called.
const notCalled = -1

// release gives the place of p back. took is how long its function ran, or notCalled. speaks
// reports whether that says something about the source: the function succeeded or ran into Timeout.
func (q *queue) release(p *Place, took time.Duration, speaks bool) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken[Normal]--
	if p.class != Normal {
		q.taken[p.class]--
	}
	if took != notCalled {
		took = min(took, q.timeout) // a function that hangs for an hour says nothing about the others
		q.samples = min(q.samples+1, window)
		q.mean += (took - q.mean) / time.Duration(q.samples)
	}
	if q.trial != nil {
		q.trial.ended(p.member, took, speaks)
		q.adapt(time.Now())
	}
	q.dispatch()
}

// enlist makes w wait, or returns why it may not. The caller holds q.mu.
func (q *queue) enlist(ctx context.Context, w *waiter, waits bool) error {
	class := w.place.class
	switch {
	case q.shut != nil:
		return q.shut
	case ctx.Err() != nil:
		return left(ctx)
	case !waits || q.longest < 0:
		return q.refusal(class, "")
	case q.waiting[class].Len() >= q.maxQueue:
		return q.refusal(class, ", and as many calls wait as MaxQueue allows")
	case q.samples == window && q.expected(class) > q.has(ctx):
		q.counts.shed++
		return q.refusal(class, ", and the turn of this call would come too late")
	}
	q.waiting[class].push(w)
	return nil
}

// margin is the factor by which a wait may turn out longer than the mean says. Under twice the
// load that a source can serve, with exponentially distributed query times, 91 % of the queries
// that the source runs still have a caller, and 84 % without the margin.
const margin = 1.1

// expected returns how long the next call of class is likely to wait. The caller holds q.mu.
func (q *queue) expected(class Class) time.Duration {
	degraded := q.waiting[Degraded].Len()
	ahead := q.taken[Normal] + q.waiting[Normal].Len() + min(degraded, q.limits[Degraded])
	wait := float64(ahead) / float64(q.usual())
	if class == Degraded {
		wait = max(wait, float64(q.taken[Degraded]+degraded)/float64(q.limits[Degraded]))
	}
	return time.Duration(margin * wait * float64(q.mean))
}

// has returns how long a call may wait for its function to return before the deadline of
// ctx, at most QueueTimeout if that was given. Without a deadline it returns QueueTimeout.
func (q *queue) has(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	switch remains := time.Until(deadline) - q.mean; {
	case !ok:
		return q.longest
	case q.capped:
		return min(remains, q.longest)
	default:
		return remains
	}
}

// dispatch gives free places to waiting calls. The caller holds q.mu.
func (q *queue) dispatch() {
	for w := q.next(); w != nil; w = q.next() {
		w.place.began = time.Now()
		q.counts.waited++
		q.counts.waitTime += w.place.began.Sub(w.since)
		q.take(w.place)
		w.line.end(w, nil)
	}
}

// next returns, of the waiting calls that fit, the one that has waited longest, or nil. The caller
// holds q.mu.
func (q *queue) next() *waiter {
	var first *waiter
	for class := range q.waiting {
		w := q.waiting[class].first()
		if w != nil && q.fits(Class(class)) && (first == nil || w.since.Before(first.since)) {
			first = w
		}
	}
	return first
}

// await waits until w has its place or is refused, or until ctx ends.
func (q *queue) await(ctx context.Context, w *waiter) error {
	timer := time.NewTimer(q.longest)
	defer timer.Stop()
	for {
		select {
		case err := <-w.ready:
			return err
		case <-ctx.Done():
			return q.giveUp(w, left(ctx))
		case <-timer.C:
			if _, ends := ctx.Deadline(); ends && !q.capped {
				timer.Reset(q.longest) // the deadline of a context for several callers may move
				continue
			}
			q.mu.Lock()
			err := q.refusal(w.place.class, ", and this call has waited for QueueTimeout")
			q.mu.Unlock()
			return q.giveUp(w, err)
		}
	}
}

// left returns the error of a caller who left because ctx has ended.
func left(ctx context.Context) error {
	return fmt.Errorf("%w: %w", ErrLimited, &callerLeft{wait.Ended(ctx)})
}

// giveUp ends the waiting of w and returns err, unless w has just got its place or a refusal:
// then it returns the result of that.
func (q *queue) giveUp(w *waiter, err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.line == nil {
		return <-w.ready
	}
	w.line.remove(w)
	return err
}

// close ends the waiting of all calls with err, and lets no call wait until open is called.
func (q *queue) close(err error) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut = err
	for class := range q.waiting {
		for l := &q.waiting[class]; l.Len() > 0; {
			l.end(l.first(), err)
		}
	}
}

// open lets calls wait again. It forgets the mean: how long functions took before the source
// failed, and while it failed, says nothing about how long they will take.
func (q *queue) open() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut, q.mean, q.samples = nil, 0, 0
}

// stats sets the fields of s that the queue counts.
func (q *queue) stats(s *Stats) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s.Waiting = q.waiting[Normal].Len() + q.waiting[Degraded].Len()
	s.Service = q.mean
	if s.Limit = q.usual(); s.Limit == math.MaxInt {
		s.Limit = 0
	}
	s.Waited, s.WaitTime, s.Shed = q.counts.waited, q.counts.waitTime, q.counts.shed
}

// A refusal is the ErrLimited of a call whose context has not ended. It formats its text
// when Error is called, because most refusals under overload are never printed.
type refusal struct {
	name   string // of the Breaker
	limit  int
	class  Class  // the class whose limit was reached
	reason string // why the call does not wait
}

// refusal returns the error of a call of class, which names the limit that was reached. The
// caller holds q.mu.
func (q *queue) refusal(class Class, reason string) error {
	if q.taken[class] < q.limits[class] {
		class = Normal
	}
	return &refusal{q.name, q.limits[class], class, reason}
}

// Unwrap returns ErrLimited.
func (r *refusal) Unwrap() error { return ErrLimited }

func (r *refusal) Error() string {
	name := r.name
	if name != "" {
		name += ": "
	}
	return fmt.Sprintf("%v: %sthe %d places of %s are taken%s", ErrLimited, name, r.limit, limitNames[r.class], r.reason)
}

var limitNames = [...]string{Normal: "MaxConcurrent", Degraded: "MaxDegraded", Background: "MaxBackground"}
