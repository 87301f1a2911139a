package mutexrebuild

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/logonce"
)

// Unconfirmed invalidations
//
// An invalidation that Redis did not confirm may have happened or not. The old
// value may stand there still, and so may a lease under which it is about to be
// published. Its caller gets an error, and the process acts on what it knows:
// the id waits here and is invalidated again until Redis confirms it, and
// meanwhile nobody in this process reads the id from Redis or publishes it there.
// They load for themselves.
//
// What is asked for twice waits once. A confirmation ends only what had been asked
// for before the attempt began: the attempt may have come before the later write.
//
// The queue has an end. Who finds no room is not invalidated again, and as nobody
// knows who that was, the whole group leaves Redis alone until the queue has been
// worked off. From then on the values of those who found no room may answer, for
// at most the rest of their TTL.

const (
	queueLimit = 10_000                // invalidations
	firstRetry = 50 * time.Millisecond // between the first two attempts
	maxRetry   = time.Second           // between any two
	farewell   = time.Second           // for what waits when the group is closed
)

// errUnconfirmed reports that Redis was not asked for an id because it may not yet
// know of an invalidation.
var errUnconfirmed = errors.New("levee: an invalidation is not confirmed yet")

// errTooFew reports that an invalidation was done, and that fewer replicas know of
// it than Options.WaitReplicas.
var errTooFew = errors.New("too few replicas")

// A target is an invalidation of an id, and the hold to lift with it, "" for none.
type target struct{ id, lift string }

// A queue holds the invalidations of a group that Redis has not confirmed. Its
// goroutine runs while it is not empty.
type queue struct {
	drop    func(context.Context, []target) error // invalidates, in one round trip
	gate    *gate
	journal *logonce.Log
	closing context.Context // ends with the group
	work    sync.WaitGroup

	doubtful                 atomic.Bool   // blocks is true for some id
	queued, retried, dropped atomic.Uint64 // see Stats

	mu      sync.Mutex // guards what follows
	limit   int
	clock   uint64           // counts what has been asked for
	waiting map[target]asked // what is not confirmed
	doubts  map[string]int   // by id: how many of the waiting Redis may not have done
	full    bool             // there was no room for a doubt
	running bool             // the goroutine
	closed  bool
}

// asked says when an invalidation was last asked for, and whether Redis may not
// have done it. If not, only replicas are missing.
type asked struct {
	at    uint64
	doubt bool
}

func newQueue(closing context.Context, gate *gate, j *logonce.Log, drop func(context.Context, []target) error) *queue {
	return &queue{
		drop: drop, gate: gate, journal: j, closing: closing, limit: queueLimit,
		waiting: map[target]asked{}, doubts: map[string]int{},
	}
}

// blocks reports whether id must not be read from Redis nor published there.
func (q *queue) blocks(id string) bool {
	if !q.doubtful.Load() {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.full || q.doubts[id] > 0
}

// now returns a moment for settle.
func (q *queue) now() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.clock
}

// add puts invalidations into the queue that have failed with err.
func (q *queue) add(targets []target, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	doubt := !errors.Is(err, errTooFew)
	q.journal.Warn("an invalidation is not confirmed and is tried again", logonce.Name("id", targets[0].id), "error", err)
	for _, t := range targets {
		was, known := q.waiting[t]
		if q.closed || !known && len(q.waiting) >= q.limit {
			q.dropped.Add(1)
			if !q.closed {
				q.journal.Error("an invalidation is not confirmed, and there is no room to try it again", logonce.Name("id", t.id))
			}
			q.full = q.full || doubt
			continue
		}
		q.queued.Add(1)
		q.clock++
		q.put(t, asked{q.clock, doubt || was.doubt})
	}
	q.review()
	if !q.running && !q.closed && len(q.waiting) > 0 {
		q.running = true
		q.work.Go(q.run)
	}
}

// settle takes out what Redis has confirmed, or all but its replicas, unless it
// has been asked for again since the attempt began.
func (q *queue) settle(targets []target, began uint64, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range targets {
		for _, t := range []target{t, {id: t.id}} { // to lift a hold is an invalidation as well
			was, known := q.waiting[t]
			switch {
			case !known || was.at > began:
			case err != nil:
				q.put(t, asked{at: was.at})
			default:
				q.remove(t)
			}
		}
	}
	q.review()
}

// put and remove keep doubts in step with waiting. The caller holds q.mu.
func (q *queue) put(t target, a asked) {
	q.remove(t)
	q.waiting[t] = a
	if a.doubt {
		q.doubts[t.id]++
	}
}

func (q *queue) remove(t target) {
	if q.waiting[t].doubt {
		if q.doubts[t.id]--; q.doubts[t.id] == 0 {
			delete(q.doubts, t.id)
		}
	}
	delete(q.waiting, t)
}

// review brings what depends on the doubts up to date. The caller holds q.mu.
func (q *queue) review() {
	q.full = q.full && len(q.waiting) > 0
	q.doubtful.Store(q.full || len(q.doubts) > 0)
}

// run works the queue off. After a failure it goes on with a single invalidation,
// and with as many as go into a round trip again when those succeed.
func (q *queue) run() {
	size, pause := 1, firstRetry
	var end time.Time // when to give up; zero: the group is in use
	for {
		if end.IsZero() && !q.wait(pause) {
			end = time.Now().Add(farewell)
		}
		for {
			targets, began := q.next(size)
			if len(targets) == 0 {
				return
			}
			err := q.drop(context.Background(), targets)
			if err == nil || errors.Is(err, errTooFew) {
				q.settle(targets, began, err)
			}
			if err != nil {
				break
			}
			q.retried.Add(uint64(len(targets)))
			size, pause = min(2*size, batch), firstRetry
			if !end.IsZero() && time.Now().After(end) {
				break
			}
		}
		if !end.IsZero() {
			q.giveUp()
			return
		}
		size, pause = 1, min(2*pause, maxRetry)
	}
}

// wait waits until it is time for another attempt: when the pause is over, or, if
// Redis is not asked, as soon as it is again. It reports false if the group is
// being closed.
func (q *queue) wait(pause time.Duration) bool {
	if q.gate.shut() {
		select {
		case <-q.gate.open():
		case <-q.closing.Done():
		}
	} else {
		sleep(q.closing, time.Duration(float64(pause)*(0.75+0.5*rand.Float64())))
	}
	return q.closing.Err() == nil
}

// next returns up to size of what waits, first of all what keeps readers from
// Redis, and the moment. If there is nothing, the goroutine ends.
func (q *queue) next(size int) (targets []target, now uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, doubt := range []bool{true, false} {
		for t, a := range q.waiting {
			if a.doubt == doubt && len(targets) < size {
				targets = append(targets, t)
			}
		}
	}
	q.running = len(targets) > 0
	return targets, q.clock
}

// giveUp drops what waits.
func (q *queue) giveUp() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropped.Add(uint64(len(q.waiting)))
	clear(q.waiting)
	clear(q.doubts)
	q.running = false
	q.review()
}

// close waits until everything is confirmed or given up, after closing has ended.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.work.Wait()
}

// length returns how many invalidations wait.
func (q *queue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}
