package flight

import (
	"context"
	"slices"
)

// Loading returns a context for a load of ids. Join returns ErrReentrant for these ids
// if it is called with this context or one made from it.
func (g *Group[R]) Loading(ctx context.Context, ids ...string) context.Context {
	return context.WithValue(ctx, loadingKey{}, &loading{group: g, ids: ids, outer: loadingOf(ctx)})
}

// IsLoading reports whether ctx is that of a load of this group, or made from one.
func (g *Group[R]) IsLoading(ctx context.Context) bool {
	return loadingOf(ctx).find(func(l *loading) bool { return l.group == g })
}

func (g *Group[R]) isLoading(ctx context.Context, id string) bool {
	return loadingOf(ctx).find(func(l *loading) bool { return l.group == g && slices.Contains(l.ids, id) })
}

// Detached returns a context with the values of ctx for work that nobody waits for: it
// does not end with ctx, and Join does not take it for the context of a load.
func Detached(ctx context.Context) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), loadingKey{}, (*loading)(nil))
}

type loadingKey struct{}

// A loading is the load that a context belongs to. If that was started from within
// another load, outer is the other one.
type loading struct {
	group any
	ids   []string
	outer *loading
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
