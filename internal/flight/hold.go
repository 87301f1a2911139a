package flight

import (
	"time"

	"github.com/levee-go/levee/internal/wait"
)

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
}

// answers reports whether h is for a caller, who may have a fallback.
func (h *heldError) answers(fallback bool) bool { return !h.refresh && (fallback || !h.forFallback) }

// holdError holds the error of f's load for about errorHold, unless one is held already;
// that of a refresh gives way. The caller holds Group.mu.
func (f *Flight[R]) holdError(err error, refused bool) {
	g, id := f.group, f.ID
	if was := g.held[id]; g.closed || f.apart || g.errorHold < 0 || was != nil && (f.alone || !was.refresh) {
		return
	}
	h := &heldError{err, refused || f.fallback, f.alone}
	g.held[id] = h
	time.AfterFunc(wait.Jitter(g.errorHold, 0.2), func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.held[id] == h {
			delete(g.held, id)
		}
	})
}

// ForgetAll is Forget for every id.
func (g *Group[R]) ForgetAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.held)
}

// Forget drops the held error of id. A writer of this process calls it: after the
// write the load may succeed.
func (g *Group[R]) Forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.held, id)
}
