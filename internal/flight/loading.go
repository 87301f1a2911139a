package flight

import (
	"context"
	"slices"
)

// Loading marks ctx as that of a load of ids, so that Join with it or a context made
// of it returns ErrReentrant for them.
func (g *Group[R]) Loading(ctx context.Context, ids ...string) context.Context {
	return context.WithValue(ctx, loadingKey{}, &loading{group: g, ids: ids, outer: loadingOf(ctx)})
}

// IsLoading reports whether ctx is that of a load of this group.
func (g *Group[R]) IsLoading(ctx context.Context) bool {
	return loadingOf(ctx).find(func(l *loading) bool { return l.group == g })
}

func (g *Group[R]) isLoading(ctx context.Context, id string) bool {
	return loadingOf(ctx).find(func(l *loading) bool { return l.group == g && slices.Contains(l.ids, id) })
}

// Detached returns ctx without its end, and not as that of a load: what is done
// under it is waited for by no load.
func Detached(ctx context.Context) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), loadingKey{}, (*loading)(nil))
}

type loadingKey struct{}

// A loading is one load that a context belongs to, and those around it, if a load
// asked for another key.
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
