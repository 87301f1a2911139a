package flight

import (
	"math/rand/v2"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// MaxRetryAfter is the longest for which an error is held because its load has asked for it, give
// or take a fifth.
const MaxRetryAfter = time.Minute

// maxHeld is for how many ids errors are held at a time for longer than errorHold, or remembered:
// the source may fail for each of a flood of keys.
const maxHeld = 10_000

// maxBackOff is up to where the hold is doubled with each failure in a row, and for how long a
// failure is remembered.
const maxBackOff = 4 * time.Second

// A heldError is the error of a load that ended a short while ago.
type heldError struct {
	err   error
	until time.Time
}

// failures are what is known of the loads of an id that have failed.
type failures struct {
	all heldError // for all callers
	// fallbacks is for those only who have a fallback. Others load: if a caller of the flight
	// had one, it has been invalidated meanwhile; and if the load was refused, they may have
	// more time.
	fallbacks heldError
	// refreshes is of a refresh. Nobody waited for it, and it may have ended because another
	// process refreshes: it stands in the way of the next refresh only.
	refreshes heldError

	inARow int
	forget time.Time // when nothing of this counts any more
}

// answer is the error that is held now for a caller of id, who may have a fallback. nil: none is.
// The caller holds Group.mu.
func (s *side[R]) answer(id string, fallback bool) error {
	h := s.failures[id]
	switch {
	case h == nil:
	case h.all.answers():
		return h.all.err
	case fallback && h.fallbacks.answers():
		return h.fallbacks.err
	}
	return nil
}

func (h heldError) answers() bool { return time.Now().Before(h.until) }

// Failed says that f ends with an error of its load, and not of something before it. If the id
// goes on to fail, each failure is held for twice as long as the one before, up to
// maxBackOff. retryAfter, if it is longer, is for how long the source has asked to be left alone;
// 0: it has not. The runner calls it before Finish.
func (f *Flight[R]) Failed(retryAfter time.Duration) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.failed, f.retryAfter = true, retryAfter
}

// holdError holds the error of f for those whom it is for. If one is held for them already, it
// goes on, unless f's load has failed and asks for more time. The caller holds Group.mu.
func (f *Flight[R]) holdError(err error, refused bool) {
	g, s, id, now := f.group, f.side, f.ID, time.Now()
	if g.closed || f.apart || g.errorHold < 0 {
		return
	}
	h := s.failures[id]
	if h == nil {
		h = &failures{}
		s.failures[id] = h
	}
	if f.failed {
		h.inARow++
	}
	held := &h.all
	switch {
	case f.alone:
		held = &h.refreshes
	case refused || f.fallback:
		held = &h.fallbacks
	}
	until := now.Add(f.holdTime(h.inARow))
	if now.Before(held.until) && (!f.failed || until.Before(held.until)) {
		return
	}
	*held = heldError{err, until}
	if h.inARow > 0 && len(s.failures) <= maxHeld {
		until = until.Add(maxBackOff)
	}
	if until.After(h.forget) {
		h.forget = until
		time.AfterFunc(until.Sub(now), func() { s.forget(g, id, h) })
	}
}

// forget ends what is known of an id, unless something has failed meanwhile.
func (s *side[R]) forget(g *Group[R], id string, h *failures) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.failures[id] == h && !time.Now().Before(h.forget) {
		delete(s.failures, id)
	}
}

// succeeded ends the row of failures of f's id. Held errors go on to be returned until their
// time is up. The caller holds Group.mu.
func (f *Flight[R]) succeeded() {
	if h := f.side.failures[f.ID]; h != nil {
		h.inARow = 0
	}
}

// holdTime is how long the error of f is held, after so many failures: about errorHold, twice
// as long for each failure after the first, and never for less than the load has asked for. The caller
// holds Group.mu.
func (f *Flight[R]) holdTime(failures int) time.Duration {
	hold := f.group.errorHold
	if f.failed && hold < maxBackOff && len(f.side.failures) <= maxHeld {
		hold = min(hold<<min(failures-1, 30), maxBackOff)
	}
	hold = wait.Jitter(hold, 0.2)
	if asked := min(f.retryAfter, MaxRetryAfter); asked > 0 && len(f.side.failures) <= maxHeld {
		hold = max(hold, asked+rand.N(asked/5+1))
	}
	return hold
}

// ForgetAll is Forget for every id.
func (g *Group[R]) ForgetAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.plain.failures)
	clear(g.strict.failures)
}

// Forget drops the held error of id. A writer of this process calls it: after the
// write the load may succeed.
func (g *Group[R]) Forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.plain.failures, id)
	delete(g.strict.failures, id)
}
