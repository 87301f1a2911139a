package flight

import (
	"context"
	"slices"
	"sync/atomic"
)

// running counts the loads of this process: while none runs, reads need not look into their contexts.
var running atomic.Int64

// Begin counts a running load of any group. The caller must call End when the load is over.
func Begin() { running.Add(1) }

// End counts the end of a load that Begin has counted.
func End() { running.Add(-1) }

// Loads reports whether any load runs in this process.
func Loads() bool { return running.Load() > 0 }

// Composing reports whether ctx is the context of a load of any group, or made from one: values read
// with it become part of a value that is stored.
func Composing(ctx context.Context) bool { return Loads() && loadingOf(ctx) != nil }

// Doubt marks the loads that ctx belongs to: a value that they have read may be old.
func Doubt(ctx context.Context) {
	for l := loadingOf(ctx); l != nil; l = l.outer {
		l.doubtful.Store(true)
	}
}

// Doubtful reports whether Doubt was called with ctx or a context of the same load.
func Doubtful(ctx context.Context) bool {
	l := loadingOf(ctx)
	return l != nil && l.doubtful.Load()
}

// Loading returns a context for a load of ids. Join returns ErrReentrant for these ids
// if it is called with this context or one made from it.
func (g *Group) Loading(ctx context.Context, ids ...string) context.Context {
	return context.WithValue(ctx, loadingKey{}, &loading{group: g, ids: ids, outer: loadingOf(ctx)})
}

// IsLoading reports whether ctx is the context of a load of this group, or made from one.
func (g *Group) IsLoading(ctx context.Context) bool {
	return loadingOf(ctx).find(func(l *loading) bool { return l.group == g })
}

func (g *Group) isLoading(ctx context.Context, id string) bool {
	return loadingOf(ctx).find(func(l *loading) bool { return l.group == g && slices.Contains(l.ids, id) })
}

// Detached returns a context with the values of ctx for work that no caller waits for: it
// does not end with ctx, and Join does not treat it as the context of a load.
func Detached(ctx context.Context) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), loadingKey{}, (*loading)(nil))
}

type loadingKey struct{}

// A loading is the load that a context belongs to. outer is the load from within which
// it was started, if any.
type loading struct {
	group    any
	ids      []string
	outer    *loading
	doubtful atomic.Bool
}

func loadingOf(ctx context.Context) *loading {
	l, _ := ctx.Value(loadingKey{}).(*loading)
	return l
}

func (l *loading) find(is func(*loading) bool) bool {
	for ; l != nil; l = l.outer {
		if is(l) {
			return true
		}
	}
	return false
}
