package mutexrebuild

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
)

// renewals are the refreshes of a group. Guarded by Group.mu.
type renewals[T any] struct {
	running int
	// byID holds those that run, and for Options.ErrorHold those that brought
	// nothing, so that not every reader tries again.
	byID map[string]*flight[T]
}

// errElsewhere ends a refresh that another process, or a writer, makes needless.
var errElsewhere = errors.New("mutexrebuild: refreshed elsewhere")

// Refresh builds the value of id anew while stale, which Do has returned, still
// answers. It does not wait: load runs in the background, under the same lease as
// that of Do, so once in all processes. Its context has the values of ctx and ends
// as that of any load does. If it brings a value, done gets it, unless done is nil.
//
// Refresh reports false and does nothing if this process is refreshing id, or
// found a moment ago that it could not, if Options.Refreshes are running, and
// after Close.
func (g *Group[T]) Refresh(ctx context.Context, id string, stale Result[T], load Load[T], done func(Result[T])) bool {
	f := g.beginRefresh(ctx, id, load)
	if f == nil {
		return false
	}
	go contain.Call(func() (err error) {
		result, err := g.refresh(f, []byte(stale.head))
		if err == nil && done != nil {
			result.First = true
			done(result)
		}
		return err
	}, func(err error) { g.endRefresh(f, err) })
	return true
}

// refresh is what answer and rebuild are for those who wait, for nobody who does:
// it gives up where they would wait, and where its value could not be published.
func (g *Group[T]) refresh(f *flight[T], seen []byte) (Result[T], error) {
	if g.store == nil {
		return g.rebuildAlone(f)
	}
	for range 2 { // what has been published meanwhile may be stale as well
		token := newToken()
		g.prepare(f)
		grant, err := g.store.begin(f.ctx, f.id, token, seen)
		if err != nil {
			return g.unknown(f)
		}
		switch grant.verdict {
		case published:
			if result, ok := g.decode(f, grant.data); ok && result.Condition == Fresh {
				return result, nil
			}
			seen = grant.data
		case tooLong:
			g.counts.unfit.Add(1)
			seen = grant.data
		case granted:
			result, published, err := g.loadLeased(f, token, seen)
			if err == nil && !published {
				err = errElsewhere // invalidated under way, so there is nothing left to refresh
			}
			return result, err
		default:
			return Result[T]{}, errElsewhere
		}
	}
	return Result[T]{}, errElsewhere
}

func (g *Group[T]) beginRefresh(ctx context.Context, id string, load Load[T]) *flight[T] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.renewal.byID[id] != nil || g.renewal.running >= g.o.Refreshes {
		return nil
	}
	// If ctx is that of another key's load, that load does not wait for this one.
	f := newFlight(context.WithValue(context.WithoutCancel(ctx), insideKey{}, (*inside)(nil)), id, load)
	g.renewal.byID[id] = f
	g.renewal.running++
	g.active.Add(1)
	g.counts.refreshes.Add(1)
	return f
}

func (g *Group[T]) endRefresh(f *flight[T], err error) {
	defer g.active.Done()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.renewal.running--
	switch {
	case err == nil:
		g.counts.refreshed.Add(1)
	case !g.closed && !errors.Is(err, errElsewhere):
		g.journal.Warn("a refresh failed", logonce.Name("id", f.id), "error", err)
	}
	if err == nil || g.o.ErrorHold < 0 || g.closed {
		delete(g.renewal.byID, f.id)
		return
	}
	time.AfterFunc(g.errorHold(), func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.renewal.byID, f.id) // while it stands there, nobody else takes its place
	})
}
