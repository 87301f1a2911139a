package flight

import (
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// A heldError is the error of a load that ended a short while ago.
type heldError struct {
	err error
	// look is true if the load had a fallback, was a refresh, or was refused. Callers then look into
	// Redis before they take err: the old value may still answer. If an invalidation
	// has removed it, they load.
	look bool
	// refresh is true if the load was a refresh. Nobody waited for it, and it may have
	// ended because another process refreshes: it stands in the way of the next refresh
	// only.
	refresh bool
}

// HeldError returns the error that a flight with a fallback takes instead of loading.
// nil: it should load.
func (f *Flight[R]) HeldError() error {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if h := f.group.held[f.ID]; h != nil && f.fallback != nil && !h.refresh {
		return h.err
	}
	return nil
}

// holdError holds the error of f's load for about errorHold, unless one is held already;
// that of a refresh gives way. The caller holds g.mu.
func (g *Group[R]) holdError(f *Flight[R], err error) {
	id := f.ID
	if was := g.held[id]; g.errorHold < 0 || was != nil && (f.alone || !was.refresh) {
		return
	}
	h := &heldError{err: err, look: f.fallback != nil || f.alone || g.isRefusal(err), refresh: f.alone}
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
