package flight

import (
	"math/rand/v2"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// MaxRetryAfter is the longest for which an error is held because its load has asked for it, give
// or take a fifth.
const MaxRetryAfter = time.Minute

// maxHeld is how many errors are held at a time for longer than errorHold, or remembered: the
// source may fail for each of a flood of keys.
const maxHeld = 10_000

// maxBackOff is up to where the hold is doubled with each failure in a row, and for how long a
// failure is remembered.
const maxBackOff = 4 * time.Second

// A heldError is the error of a load that ended a short while ago.
type heldError struct {
	err error
	// forFallback is true if the error answers those only who have a fallback. Others load: if a
	// caller of the flight had one, it has been invalidated meanwhile; and if the load was
	// refused, they may have more time.
	forFallback bool
	// refresh is true if the load was a refresh. Nobody waited for it, and it may have
	// ended because another process refreshes: it stands in the way of the next refresh
	// only.
	refresh bool
	before  *heldError // that of a refresh, which this one has pushed aside
	over    bool       // its time has ended; it is there so that the next failure counts from it

	failures int // of loads, in a row
}

// answers reports whether h is for a caller, who may have a fallback.
func (h *heldError) answers(fallback bool) bool {
	return !h.over && !h.refresh && (fallback || !h.forFallback)
}

// Failed says that f ends with an error of its load, and not of something before it. If the id
// goes on to fail, each failure is held for twice as long as the one before, up to
// maxBackOff. retryAfter, if it is longer, is for how long the source has asked to be left alone;
// 0: it has not. The runner calls it before Finish.
func (f *Flight[R]) Failed(retryAfter time.Duration) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.failed, f.retryAfter = true, retryAfter
}

// holdError holds the error of f's load, unless one is held already; that of a refresh gives
// way for as long. The caller holds Group.mu.
func (f *Flight[R]) holdError(err error, refused bool) {
	g, held, id := f.group, f.side.held, f.ID
	was := held[id]
	if g.closed || f.apart || g.errorHold < 0 || was != nil && !was.over && (f.alone || !was.refresh) {
		return
	}
	h := &heldError{err: err, forFallback: refused || f.fallback, refresh: f.alone}
	if was != nil {
		h.before, h.failures = was, was.failures
		was.before = nil
	}
	if f.failed {
		h.failures++
	}
	held[id] = h
	time.AfterFunc(f.holdTime(h.failures), func() { f.side.end(g, id, h) })
}

// end ends the time of h. If loads of its id have failed, that is remembered for a while.
func (s *side[R]) end(g *Group[R], id string, h *heldError) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch h.over = true; {
	case s.held[id] != h:
	case h.before != nil && !h.before.over:
		s.held[id] = h.before
		h.before.failures = h.failures
	case h.failures > 0 && len(s.held) <= maxHeld && !g.closed:
		time.AfterFunc(maxBackOff, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if s.held[id] == h {
				delete(s.held, id)
			}
		})
	default:
		delete(s.held, id)
	}
}

// succeeded ends what is remembered of failures of f's id. The caller holds Group.mu.
func (f *Flight[R]) succeeded() {
	switch h := f.side.held[f.ID]; {
	case h == nil:
	case h.over:
		delete(f.side.held, f.ID)
	default: // it answers not all, and goes on to
		h.failures = 0
	}
}

// holdTime is how long the error of f is held, after so many failures: about errorHold, twice
// as long for each failure after the first, and never for less than the load has asked for. The caller
// holds Group.mu.
func (f *Flight[R]) holdTime(failures int) time.Duration {
	hold := f.group.errorHold
	if f.failed && hold < maxBackOff && len(f.side.held) <= maxHeld {
		hold = min(hold<<min(failures-1, 30), maxBackOff)
	}
	hold = wait.Jitter(hold, 0.2)
	if asked := min(f.retryAfter, MaxRetryAfter); asked > 0 && len(f.side.held) <= maxHeld {
		hold = max(hold, asked+rand.N(asked/5+1))
	}
	return hold
}

// ForgetAll is Forget for every id.
func (g *Group[R]) ForgetAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.plain.held)
	clear(g.strict.held)
}

// Forget drops the held error of id. A writer of this process calls it: after the
// write the load may succeed.
func (g *Group[R]) Forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.plain.held, id)
	delete(g.strict.held, id)
}
