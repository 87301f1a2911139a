package lock

import (
	"context"
	"slices"
	"sync"

	"github.com/levee-go/levee/internal/keys"
)

// LockAll takes the locks of all names, or none. It takes them one after the other,
// in an order that is the same for all callers, so that callers with names in common
// cannot block each other. When it fails, it gives back the locks that it has.
// Duplicates count once; no names is ErrConfig. Otherwise it is like Lock, for each
// name.
//
// The lease ends when any of the locks is lost. Its fence is the highest of all, and
// the fence of each lock is raised to it, so that it fences all protected resources.
func (l *Locker) LockAll(ctx context.Context, names ...string) (*Lease, error) {
	if len(names) == 0 {
		return nil, badConfig("no names")
	}
	o, err := l.options()
	if err != nil {
		return nil, err
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	targets := make([]target, len(names))
	for i, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
		targets[i] = newTarget(o.Prefix, keys.Mutex, name, exclusive)
		if heldBy(ctx, targets[i].record()) {
			return nil, ErrDeadlock
		}
	}
	grants, err := l.shared.takeAll(ctx, targets, &o)
	if err != nil {
		l.shared.releaseAll(ctx, grants)
		return nil, err
	}
	return l.shared.lease(ctx, grants...), nil
}

// takeAll takes locks one after the other and gives all the same fence. With an error
// it returns those that it has taken until then.
func (l *locker) takeAll(ctx context.Context, targets []target, o *Options) (grants []*grant, err error) {
	for i := range targets {
		g, err := l.take(ctx, &targets[i], o, true)
		if err != nil {
			return grants, err
		}
		grants = append(grants, g)
		if err := l.watchdog.firstLoss(grants); err != nil {
			return grants, err
		}
	}
	return grants, l.raiseFences(ctx, grants)
}

// raiseFences raises the fence of each lock to the highest of them, so that a later
// holder of any of the locks gets a higher one.
func (l *locker) raiseFences(ctx context.Context, grants []*grant) error {
	var highest int64
	for _, g := range grants {
		highest = max(highest, g.fence)
	}
	errs := make([]error, len(grants))
	var all sync.WaitGroup
	for i, g := range grants {
		if g.fence < highest {
			all.Go(func() { errs[i] = l.raiseFence(ctx, g, highest) })
		}
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *locker) raiseFence(ctx context.Context, g *grant, fence int64) error {
	r, err := l.redis.raiseFence(ctx, g, fence)
	switch {
	case err != nil && ctx.Err() != nil:
		return notAcquired(ctx)
	case err != nil:
		return err
	case r.answer != answerOK:
		return lossError(r.answer.cause())
	}
	return nil
}
