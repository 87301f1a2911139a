package lock

import (
	"container/heap"
	"time"
)

// Cohorts
//
// A holder that unlocks while other callers of its process wait passes the lock on to the
// first of them without calling Redis: the owner in Redis stays the same and is renewed as
// before. (Lock cohorting: Dice, Marathe, Shavit, PPoPP 2012.)
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
//   - Each caller's fence is one more than the fence of the caller before. The next owner's
//     fences begin after the last of this owner's, whatever becomes of this process.
//   - The lease of each caller ends at the deadline that Redis has confirmed. A lease that
//     is lost, or has little time left, is not passed on.
//
// The price: an Unlock that passes the lock on does not notice that Redis lost it, within
// maxTurn before. The caller that gets the lock does.
//
// It is fair to other processes: after maxPassed callers or maxTurn the lock goes back to
// Redis, and from there to the head of the queue. The head may be this process once more, if
// its waiters came first: then it has a second turn, and after that the last place.

const (
	maxPassed = 15                    // callers after the first; FENCES of begin.lua minus one
	maxTurn   = 50 * time.Millisecond // since Redis has granted the lock
)

// mayPassOn reports whether callers with these options pass locks on. A lease that ends at a
// time of its own, or that replicas or a disk have to confirm, serves one caller; and in strict
// order waiters of other processes may come between two waiters of this one.
func (o *Options) mayPassOn() bool {
	return !o.StrictFIFO && !o.NoRenewal && o.MaxHold == 0 && !o.confirm().Wanted()
}

// passOn gives a lock that its holder releases to the first waiter of this process. It
// reports false, and does nothing, if the lock has to be released in Redis.
func (l *locker) passOn(g *grant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	room := l.rooms[roomFor(&g.target, g.o)]
	// Redis may grant the lock to a leader whose bid is in flight at this moment.
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

// succeed replaces g by a grant for another caller, whose options are o, and returns that
// grant. It returns nil if g must not be passed on.
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
	g.watched = false // settle ignores a renewal of it that is in flight
	w.grants[g.index] = next
	heap.Fix(&w.grants, next.index)
	w.wakeFor(next)
	return next
}

// keepForOne makes sure that a grant is not passed on.
func (w *watchdog) keepForOne(g *grant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g.spare = 0
}
