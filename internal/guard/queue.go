package guard

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// A queue has the places of a Breaker, and the calls that wait for one, first in, first
// out.
//
// It serves bursts and sheds standing overload, by Little's law: a call that has n others
// before it, waiting or running, waits for about n ÷ limit times as long as one function
// takes. If it has less time than that it is refused at once, while its caller can still
// do something about it. A bound on the wait alone does neither: a short one fails bursts
// that would be over in a second, and behind a long one all callers wait for most of their
// time and are then served too late to be of use (Maurer, "Fail at Scale", ACM Queue 2015).
type queue struct {
	name     string
	most     [classes]int // limits of Options; most[Normal] is that of all classes together
	maxQueue int
	longest  time.Duration // QueueTimeout; negative: nobody waits
	capped   bool          // longest holds for callers with a deadline too
	timeout  time.Duration // how long a function counts at most

	mu      sync.Mutex   // guards what follows
	trial   *trial       // that finds the limit; nil: it is most
	limits  [classes]int // at present
	shut    error        // why nobody may wait now; nil: the breaker is closed
	taken   [classes]int
	waiting [classes]line
	mean    time.Duration // that a function keeps its place, the later ones counting for more
	samples int           // that the mean is made of, up to window
	counts  struct {
		waited, shed uint64
		waitTime     time.Duration
	}
}

// window is how many functions the mean is made of, more or less. A mean of fewer refuses
// nobody: the first functions of a burst may be slow for reasons of their own, such as
// connections that are being opened.
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

// acquire takes a place for p. The error matches ErrLimited, and that of ctx if it has
// ended, or is that of shut.
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

// adapt has the limits be those of now. Who waits is ahead of who comes when they have risen.
// A trial gives places back also if no call comes or ends then. The caller holds q.mu.
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

// usual is the limit but for the moments of a trial. The caller holds q.mu.
func (q *queue) usual() int {
	if q.trial == nil {
		return q.limits[Normal]
	}
	return int(q.trial.limit)
}

// notCalled is how long a function took that was not called.
const notCalled = -1

// release gives the place of p back, whose function took so long. It speaks of the source if
// it succeeded or ran into Timeout.
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
		took = min(took, q.timeout) // one that hangs for an hour says nothing about the others
		q.samples = min(q.samples+1, window)
		q.mean += (took - q.mean) / time.Duration(q.samples)
	}
	if q.trial != nil {
		q.trial.ended(p.member, took, speaks)
		q.adapt(time.Now())
	}
	q.dispatch()
}

// enlist lets a call wait, or refuses it. The caller holds q.mu.
func (q *queue) enlist(ctx context.Context, w *waiter, waits bool) error {
	class := w.place.class
	switch {
	case q.shut != nil:
		return q.shut
	case ctx.Err() != nil:
		return left(ctx)
	case !waits || q.longest < 0:
		return q.refusal(class, "")
	case q.waiting[class].len >= q.maxQueue:
		return q.refusal(class, ", and as many calls wait as MaxQueue allows")
	case q.samples == window && q.expected(class) > q.has(ctx):
		q.counts.shed++
		return q.refusal(class, ", and the turn of this call would come too late")
	}
	q.waiting[class].push(w)
	return nil
}

// margin is by how much a wait may turn out longer than the mean says. Under twice the load
// that a source can serve, with queries that differ as much as an exponential distribution
// has it, 91 % of what the source does is of use, and 84 % without a margin.
const margin = 1.1

// expected is how long the next call of class is likely to wait. The caller holds q.mu.
func (q *queue) expected(class Class) time.Duration {
	degraded := q.waiting[Degraded].len
	ahead := q.taken[Normal] + q.waiting[Normal].len + min(degraded, q.limits[Degraded])
	wait := float64(ahead) / float64(q.usual())
	if class == Degraded {
		wait = max(wait, float64(q.taken[Degraded]+degraded)/float64(q.limits[Degraded]))
	}
	return time.Duration(margin * wait * float64(q.mean))
}

// has is how long a call may wait: until it would be too late for its function to return
// before the deadline of ctx, and QueueTimeout if that was given or there is no deadline.
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

// dispatch hands the places that are free to those who wait. The caller holds q.mu.
func (q *queue) dispatch() {
	for w := q.next(); w != nil; w = q.next() {
		w.place.began = time.Now()
		q.counts.waited++
		q.counts.waitTime += w.place.began.Sub(w.since)
		q.take(w.place)
		w.line.end(w, nil)
	}
}

// next returns the call that has waited for longest of those that fit.
func (q *queue) next() *waiter {
	var first *waiter
	for class := range q.waiting {
		w := q.waiting[class].first
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
				timer.Reset(q.longest) // the deadline of a context that speaks for several callers may move
				continue
			}
			q.mu.Lock()
			err := q.refusal(w.place.class, ", and this call has waited for QueueTimeout")
			q.mu.Unlock()
			return q.giveUp(w, err)
		}
	}
}

// left is the error of a caller who does not wait for a place any more.
func left(ctx context.Context) error { return fmt.Errorf("%w: %w", ErrLimited, &gone{wait.Ended(ctx)}) }

// giveUp ends the waiting of w with err, unless it has just ended otherwise.
func (q *queue) giveUp(w *waiter, err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.line == nil {
		return <-w.ready
	}
	w.line.remove(w)
	return err
}

// close ends the waiting of all calls, and lets none wait until open is called.
func (q *queue) close(why error) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut = why
	for class := range q.waiting {
		for l := &q.waiting[class]; l.first != nil; {
			l.end(l.first, why)
		}
	}
}

// open lets calls wait again. What functions took before the source failed, and while it
// did, says nothing about what they will take.
func (q *queue) open() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut, q.mean, q.samples = nil, 0, 0
}

// stats fills in what the queue knows.
func (q *queue) stats(s *Stats) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s.Waiting = q.waiting[Normal].len + q.waiting[Degraded].len
	s.Service = q.mean
	if s.Limit = q.usual(); s.Limit == math.MaxInt {
		s.Limit = 0
	}
	s.Waited, s.WaitTime, s.Shed = q.counts.waited, q.counts.waitTime, q.counts.shed
}

// A refusal is the ErrLimited of a call whose context has not ended. Its text is made when
// it is read: under overload there are many that nobody reads.
type refusal struct {
	name  string // of the Breaker
	limit int
	of    Class  // the limit that was reached
	why   string // it does not wait
}

// refusal refuses a call of class, by the limit that was reached. The caller holds q.mu.
func (q *queue) refusal(class Class, why string) error {
	if q.taken[class] < q.limits[class] {
		class = Normal
	}
	return &refusal{q.name, q.limits[class], class, why}
}

// Unwrap makes a refusal an ErrLimited.
func (r *refusal) Unwrap() error { return ErrLimited }

func (r *refusal) Error() string {
	name := r.name
	if name != "" {
		name += ": "
	}
	return fmt.Sprintf("%v: %sthe %d places of %s are taken%s", ErrLimited, name, r.limit, limitNames[r.of], r.why)
}

var limitNames = [...]string{Normal: "MaxConcurrent", Degraded: "MaxDegraded", Background: "MaxBackground"}
