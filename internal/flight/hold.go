package flight

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// MaxRetryAfter is the longest hold that a load can ask for with its error; up to a fifth is added
// to it at random.
const MaxRetryAfter = time.Minute

// maxHeld is the number of ids with held errors above which no hold is longer than errorHold and no
// failures are remembered after it: the source may fail for each key of a flood.
const maxHeld = 10_000

// maxBackOff is the longest hold to which failures in a row double it, and for how long after the
// hold a failure counts as part of the row.
const maxBackOff = 4 * time.Second

// A heldError is an error that Join returns until a time.
type heldError struct {
	err   error
	until time.Time
}

// An audience says who gets a held error. Each audience is part of the next one: an error is returned to its
// own audience and to those before it.
type audience uint8

const (
	// refreshes get the error of a refresh. No caller waited for it, and the refresh may have ended
	// because another process refreshes, so it prevents only the next refresh.
	refreshes audience = iota
	// withFallback are callers who have a fallback. One without may load: either the fallback was
	// invalidated since, or it has more time than the caller who was refused.
	withFallback
	everybody
	audiences
)

// failures has the held errors of one id, and how many of its loads have failed in a row.
type failures struct {
	held   [audiences]heldError
	inARow int
	forget time.Time // when nothing of this counts any more
}

// heldFor returns the error that is held now for callers of audience a; nil if there is none. h may be nil.
func (h *failures) heldFor(a audience) error {
	if h == nil {
		return nil
	}
	for _, held := range slices.Backward(h.held[a:]) {
		if time.Now().Before(held.until) {
			return held.err
		}
	}
	return nil
}

// audience returns who gets an error of f, which may be the refusal of its load.
func (f *Flight) audience(refused bool) audience {
	switch {
	case f.kind == alone:
		return refreshes
	case refused || f.fallback:
		return withFallback
	}
	return everybody
}

// Failed notes that f ends with an error of its load, not of a step before it. Each failure of an
// id in a row is held for twice as long as the one before, up to maxBackOff, and at least for
// retryAfter, the pause that the source has asked for; 0: it has not. The runner calls Failed
// before Finish.
func (f *Flight) Failed(retryAfter time.Duration) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.failed, f.retryAfter = true, retryAfter
}

// holdError holds err for the callers it concerns. An error that is held for them already stays,
// unless f's load has failed and err would be held longer. The caller holds Group.mu.
func (f *Flight) holdError(err error, refused bool) {
	g, id, now := f.group, f.ID, time.Now()
	if g.closed || f.kind == apart || f.forgotten || g.errorHold < 0 {
		return
	}
	all := f.failures()
	h := all[id]
	if h == nil {
		h = &failures{}
		all[id] = h
	}
	if f.failed {
		h.inARow++
	}
	held := &h.held[f.audience(refused)]
	until := now.Add(f.holdTime(h.inARow))
	if now.Before(held.until) && (!f.failed || until.Before(held.until)) {
		return
	}
	*held = heldError{err, until}
	if h.inARow > 0 && len(all) <= maxHeld {
		until = until.Add(maxBackOff)
	}
	if until.After(h.forget) {
		h.forget = until
		side := f.kind.side()
		time.AfterFunc(until.Sub(now), func() { g.forget(side, id, h) })
	}
}

// failures returns the held errors among which those of f's id are. The caller holds Group.mu.
func (f *Flight) failures() map[string]*failures { return f.group.failures[f.kind.side()] }

// forget drops h, the failures of id, unless another load has failed meanwhile. It does not refer to
// the flight, which may lie in one piece of memory with its run.
func (g *Group) forget(side int, id string, h *failures) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failures[side][id] == h && !time.Now().Before(h.forget) {
		delete(g.failures[side], id)
	}
}

// succeeded ends the row of failures of f's id. Held errors go on to be returned until their
// time is up. The caller holds Group.mu.
func (f *Flight) succeeded() {
	if h := f.failures()[f.ID]; h != nil {
		h.inARow = 0
	}
}

// holdTime returns how long the error of f is held after so many failures in a row: about errorHold,
// doubled for each failure after the first, and at least as long as the load has asked for. The
// caller holds Group.mu.
func (f *Flight) holdTime(failures int) time.Duration {
	hold := f.group.errorHold
	if f.failed && hold < maxBackOff && len(f.failures()) <= maxHeld {
		hold = min(hold<<min(failures-1, 30), maxBackOff)
	}
	hold = wait.Jitter(hold, 0.2)
	if asked := min(f.retryAfter, MaxRetryAfter); asked > 0 && len(f.failures()) <= maxHeld {
		hold = max(hold, asked+rand.N(asked/5+1))
	}
	return hold
}

// ForgetAll is Forget for all ids.
func (g *Group) ForgetAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, all := range g.failures {
		clear(all)
	}
	for _, running := range g.flights {
		for _, f := range running {
			f.forgotten = true
		}
	}
}

// Forget drops the held errors of id, and errors of flights that run now are not held: the load may
// have failed before a write, and one after it may succeed. A writer of this process calls it, and the
// message of one of another process has it called.
func (g *Group) Forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, all := range g.failures {
		delete(all, id)
	}
	for _, running := range g.flights {
		if f := running[id]; f != nil {
			f.forgotten = true
		}
	}
}
