package lock

import (
	"container/heap"
	"time"
)

// Cohorts
//
// A holder that unlocks while others of its process wait passes the lock on to the first of
// them. Redis is not asked: its owner of the lock stays the same and is renewed as before.
// (Lock cohorting: Dice, Marathe, Shavit, PPoPP 2012.)
//
//	goroutine 1     goroutine 2     another process     Redis
//	Lock ────────────────────────────────────────────▶ owner a, fences 1600 to 1615
//	holds 1600      waits           waits
//	Unlock ───────▶ holds 1601                          owner a
//	                Unlock ──────────────────────────▶ nobody
//	                                holds 1616 ◀────── owner b, fences 1616 to 1631
//
// It is as safe as a lease that one caller holds all the time:
//
//   - Each caller's fence is one more than that of the caller before. Redis begins the next
//     owner's fences after the last of this one's, whatever becomes of this process.
//   - The lease of each caller ends at the deadline that Redis has confirmed. A lease that
//     is lost, or has little time left, is not passed on.
//
// What is given up: an Unlock that passes the lock on does not hear that Redis has lost it.
// That was within maxTurn. The caller who got the lock hears of it.
//
// It is fair to other processes: after maxPassed callers or maxTurn the lock goes back to
// Redis, and from there to the head of the queue. That may be this process once more, if its
// waiters came before the others': then it has a second turn, and its next place is the last.

const (
	maxPassed = 15                    // callers after the first; FENCES of begin.lua less one
	maxTurn   = 50 * time.Millisecond // since Redis has granted the lock
)

// mayPassOn reports whether callers with these options take part. A lease that ends at a time
// of its own, or that replicas or a disk have to confirm, is one caller's; and in strict
// order waiters of other processes may stand between those of this one.
func (o *Options) mayPassOn() bool {
	return !o.StrictFIFO && !o.NoRenewal && o.MaxHold == 0 && !o.confirm().Wanted()
}

// passOn gives a lock, which its holder gives back, to the first who waits for it in this
// process. It reports false, and does nothing, if the lock is to go back to Redis.
func (l *locker) passOn(g *grant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	room := l.rooms[roomFor(&g.target, g.o)]
	// A leader whose bid is on its way may be granted the lock by Redis in this moment.
	if room == nil || room.bids || l.closing {
		return false
	}
	w := room.line.Front().Value.(*waiter)
	if !w.o.mayPassOn() {
		return false
	}
	next := l.watchdog.succeed(g, w.o)
	if next == nil {
		return false
	}
	room.remove(w)
	w.handed <- handed{grant: next}
	l.appointLeader(room)
	return true
}

// succeed puts a grant for another caller, with its options, into the place of g, and returns
// it; nil: g must not be passed on.
func (w *watchdog) succeed(g *grant, o *Options) *grant {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if !g.watched || g.spare == 0 || now.Sub(g.granted) > maxTurn || left(g.deadline, now) < g.o.Lease/3 {
		return nil
	}
	next := &grant{
		target: g.target, owner: g.owner, fence: g.fence + 1, spare: g.spare - 1, o: o, granted: g.granted, taken: now,
		ends: g.ends, deadline: g.deadline, next: g.next, watched: true, index: g.index,
	}
	g.watched = false // a renewal of it on its way says nothing any more
	w.grants[g.index] = next
	heap.Fix(&w.grants, next.index)
	w.wakeFor(next)
	return next
}

// keepForOne sees to it that a grant is not passed on.
func (w *watchdog) keepForOne(g *grant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g.spare = 0
}
