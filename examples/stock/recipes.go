package main

import (
	"context"
	"errors"
	"sync"

	"github.com/levee-go/levee/examples/internal/stage"
	"github.com/levee-go/levee/lock"
)

var recipes = []stage.Recipe[scale]{
	{Name: "a sync.Mutex in each process", Naive: true, Reset: inOne, Serve: mutex},
	{Name: "SET NX PX, DEL", Naive: true, Reset: inOne, Serve: setNXPX},
	{Name: "lock.Do", Reset: inOne, Serve: one},
	{Name: "lock.Striped, a lock for each segment", Reset: inSegments, Serve: segmented},
	{Name: "no lock but one conditional UPDATE", Reset: inOne, Serve: conditional},
}

// A mutex keeps the buyers of this process apart. Those of the other one do not know of it.
func mutex(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	w := &warehouse{db: p.DB, scale: s}
	var mu sync.Mutex
	return rush(ctx, w, func(ctx context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		return w.sell(ctx, 0)
	}), nil
}

// A sale that takes longer than the TTL runs beside the next one, and then deletes that one's lock.
func setNXPX(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	w := &warehouse{db: p.DB, scale: s}
	return rush(ctx, w, func(ctx context.Context) error {
		return stage.SetNX(ctx, p.Redis, p.Prefix+":lock", s.Lease, func() error { return w.sell(ctx, 0) })
	}), nil
}

// The lease is renewed as long as its holder lives.
func one(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	w := &warehouse{db: p.DB, scale: s}
	return withLocker(p, s, func(locker *lock.Locker) stage.Tally {
		return rush(ctx, w, func(ctx context.Context) error {
			return locker.Do(ctx, "stock", func(ctx context.Context, _ *lock.Lease) error { return w.sell(ctx, 0) })
		})
	})
}

// A buyer takes any segment that is free, and looks into the others before he goes away empty-handed.
func segmented(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	w := &warehouse{db: p.DB, scale: s}
	return withLocker(p, s, func(locker *lock.Locker) stage.Tally {
		stock := locker.Striped("stock", s.Segments)
		return rush(ctx, w, func(ctx context.Context) error {
			var empty []int
			for len(empty) < s.Segments {
				lease, segment, err := stock.LockAny(ctx, empty...)
				if err != nil {
					return err
				}
				err = w.sell(lease.Context(), segment)
				if lost := lease.Unlock(ctx); !errors.Is(err, errSoldOut) || lost != nil {
					return errors.Join(err, lost)
				}
				empty = append(empty, segment)
			}
			return errSoldOut
		})
	})
}

// To count something down takes no lock.
func conditional(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	w := &warehouse{db: p.DB, scale: s}
	return rush(ctx, w, w.sellOne), nil
}

func withLocker(p *stage.Process, s scale, do func(*lock.Locker) stage.Tally) (stage.Tally, error) {
	locker, err := lock.New(p.Redis, lock.Options{Prefix: p.Prefix, Lease: s.Lease})
	if err != nil {
		return stage.Tally{}, err
	}
	defer locker.Close()
	return do(locker), nil
}

// rush has every buyer come. Who comes too late sees it at the door.
func rush(ctx context.Context, w *warehouse, buy func(ctx context.Context) error) stage.Tally {
	return stage.Crowd(ctx, w.scale.Customers, w.scale.Buyers, func(ctx context.Context, _ int) error {
		if none, err := w.soldOut(ctx); err != nil || none {
			return orSoldOut(err)
		}
		return buy(ctx)
	})
}
