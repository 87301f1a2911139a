package lock

import (
	"context"
	"errors"
	"slices"

	"github.com/levee-go/levee/internal/fence"
	"github.com/levee-go/levee/internal/keys"
)

// LockAll takes the locks of all names, or none. If all are free and nobody waits for any of
// them, it takes them with one script, at one moment. Otherwise, or in a cluster that keeps
// them in several slots, or with more than 128 names, it takes them one after the other, in an
// order that is the same for all callers, so that callers with names in common cannot
// deadlock. When it fails, it releases the locks it has taken. Duplicate names count once;
// without names the error matches ErrConfig. Otherwise it is like Lock, for each name.
//
// The lease ends when any of the locks is lost. Its fence is larger than every earlier fence
// of each of the locks, so that it fences all protected resources.
func (l *Locker) LockAll(ctx context.Context, names ...string) (*Lease, error) {
	if len(names) == 0 {
		return nil, badConfig("no names")
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	targets := make([]target, len(names))
	for i, name := range names {
		var err error
		if targets[i], err = l.target(keys.Mutex, name, exclusive); err != nil {
			return nil, err
		}
		if heldBy(ctx, targets[i].record()) {
			return nil, ErrDeadlock
		}
	}
	grants, err := l.shared.takeAll(ctx, targets, l.o)
	if err != nil {
		_ = l.shared.releaseAll(ctx, grants, 0)
		return nil, err
	}
	return l.shared.lease(ctx, grants), nil
}

// maxTogether is how many locks one script takes: Redis serves no other client meanwhile.
const maxTogether = 128

// takeAll takes locks and gives all of them the same fence. With an error it also returns the
// grants that it has got until then.
func (l *locker) takeAll(ctx context.Context, targets []target, o *Options) (grants []*grant, err error) {
	if l.mayShareScript(targets) {
		grants, err = l.count(ctx, o, true, func() ([]*grant, bool, error) { return l.takeTogether(ctx, targets, o) })
		if grants != nil || err != nil {
			return grants, err
		}
	}
	for i := range targets {
		taken, err := l.take(ctx, &targets[i], o, true)
		if err != nil {
			return grants, err
		}
		grants = append(grants, taken...)
		if err := l.watchdog.firstLoss(grants); err != nil {
			return grants, err
		}
	}
	return grants, l.raiseFences(ctx, grants)
}

// mayShareScript reports whether targets are several locks that one script can take.
func (l *locker) mayShareScript(targets []target) bool {
	if len(targets) < 2 || len(targets) > maxTogether {
		return false
	}
	if !l.store.clustered() {
		return true
	}
	records := make([]string, len(targets))
	for i := range targets {
		records[i] = targets[i].record()
	}
	return keys.LocksShareSlot(records)
}

// takeTogether takes locks with one script, which it does not repeat: if the outcome is unknown,
// it makes sure that its owners keep none of the locks. It returns neither grants nor an error if
// the locks have to be taken one after the other. contended is always false.
func (l *locker) takeTogether(ctx context.Context, targets []target, o *Options) (grants []*grant, contended bool, err error) {
	b := o.bid()
	for range targets {
		b.owners = append(b.owners, l.newOwner())
	}
	r, err := l.store.acquireAll(ctx, targets, b)
	switch {
	case errors.Is(err, ErrConflict):
		return nil, false, err
	case errors.Is(err, errSlots) || err == nil && r.answer == answerBusy:
		return nil, false, nil
	case err != nil || r.answer != answerGranted: // "gone": one was granted, and lost at once
		for i := range targets {
			l.refuse(&targets[i], o.Lease, b.owners[i:i+1])
		}
		if ctx.Err() != nil {
			err = notAcquired(ctx)
		}
		return nil, false, err
	}
	for i := range targets {
		g, err := l.accept(ctx, &targets[i], o, b.owners[i], r.granted)
		if err != nil {
			for i++; i < len(targets); i++ {
				grants = append(grants, newGrant(&targets[i], o, b.owners[i], r.granted))
			}
			_ = l.releaseAll(ctx, grants, 0)
			return nil, false, err
		}
		grants = append(grants, g)
	}
	return grants, false, nil
}

// raiseFences raises the fence of each lock to the highest fence of grants, so that a
// later holder of any of the locks gets a higher one.
func (l *locker) raiseFences(ctx context.Context, grants []*grant) error {
	var highest int64
	for _, g := range grants {
		highest = max(highest, g.fence)
	}
	return atOnce(grants, func(g *grant) error {
		if g.fence == highest {
			return nil
		}
		return l.raiseFence(ctx, g, highest)
	})
}

func (l *locker) raiseFence(ctx context.Context, g *grant, least int64) error {
	l.watchdog.keepForOne(g) // the fences it could pass on are too low
	r, err := l.store.change(ctx, renewal{grant: g, raise: least})
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

func init() {
	fence.Raise = func(ctx context.Context, lease any, least int64) error {
		s := lease.(*Lease)
		return s.locker.raiseFence(ctx, s.acq.grants[0], least)
	}
}
