package lock

import (
	"context"
	"slices"
	"sync"

	"github.com/levee-go/levee/internal/keys"
)

// LockAll takes the locks of all names, or none. It takes them one after the other
// in an order that is the same for everybody, so that callers with names in common
// cannot block each other, and gives back what it has when it fails. Duplicates
// count once; no names is ErrConfig. Otherwise it is like Lock, for each name.
//
// The lease ends when any of the locks is lost. Its fence is the highest of all,
// and every lock's is raised to it: it can be used with what any of them protects.
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
		if l.c.keeper.holds(ctx, targets[i].record()) {
			return nil, ErrDeadlock
		}
	}
	var holds []*hold
	for i := range targets {
		h, err := l.c.take(ctx, &targets[i], &o, true)
		if err == nil {
			holds = append(holds, h)
			err = l.c.keeper.lostOne(holds)
		}
		if err != nil {
			l.c.giveAllBack(ctx, holds)
			return nil, err
		}
	}
	if err := l.c.raise(ctx, holds); err != nil {
		l.c.giveAllBack(ctx, holds)
		return nil, err
	}
	return l.c.lease(ctx, holds...), nil
}

// raise gives all locks the highest fence of them, so that those who take one of
// them later get a higher one.
func (c *core) raise(ctx context.Context, holds []*hold) error {
	var top int64
	for _, h := range holds {
		top = max(top, h.fence)
	}
	errs := make([]error, len(holds))
	var all sync.WaitGroup
	for i, h := range holds {
		if h.fence == top {
			continue
		}
		all.Go(func() {
			r, err := c.store.renew(ctx, h, 0, top, "")
			switch {
			case err != nil && ctx.Err() != nil:
				errs[i] = notAcquired(end(ctx))
			case err != nil:
				errs[i] = err
			case r.what != "ok":
				errs[i] = lost(verdict(r.what))
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// lostOne returns the error of a hold that was lost already.
func (k *keeper) lostOne(holds []*hold) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range holds {
		if h.err != nil {
			return h.err
		}
	}
	return nil
}

func (c *core) giveAllBack(ctx context.Context, holds []*hold) {
	var all sync.WaitGroup
	for _, h := range holds {
		all.Go(func() { _ = c.giveBack(ctx, h, 0) })
	}
	all.Wait()
}
