package cache

import (
	"context"
	"time"

	"github.com/levee-go/levee/cache/internal/inside"
)

// audited is for package audit, which finds writers that forget to invalidate.
func (c *Cache[K, V]) audited() inside.Audit[K, V] {
	return inside.Audit[K, V]{
		ReplicaLag: c.o.ReplicaLag, Closing: c.closing, Log: c.log, Counts: &c.counts.audit,
		Stale: func(age time.Duration) { c.counts.audit.Stale.Add(1); c.times.audit.add(&ages, age) },
		Sample: func() (pick func() (K, bool), stop func()) {
			s := &inside.Sample[K]{}
			if !c.sample.CompareAndSwap(nil, s) {
				return nil, nil
			}
			return s.Pick, func() { c.sample.Store(nil) }
		},
		Look:       c.lookApart,
		Encode:     func(v V) ([]byte, error) { return c.format.marshal(v) },
		Invalidate: c.Invalidate,
	}
}

// lookApart reads what is served for key and then the source, for nobody but its caller.
func (c *Cache[K, V]) lookApart(ctx context.Context, key K) (look inside.Look[V], err error) {
	if look.ID, err = c.id(key); err != nil {
		return look, err
	}
	served, err := c.served(ctx, key, look.ID)
	if err != nil || served == nil {
		return look, named(err)
	}
	source, err := c.fromSource(ctx, key, look.ID)
	if err != nil {
		return look, named(err)
	}
	look.There, look.Cached, look.Stored, look.Age = true, c.own(served), served.life, served.age(time.Now())
	if look.Gone = source.null; !look.Gone {
		look.Source = c.own(source)
	}
	return look, nil
}

// served returns the value that a Get would give now, nil if it would load, or give a
// null or an old value.
func (c *Cache[K, V]) served(ctx context.Context, key K, id string) (*entry[V], error) {
	now := time.Now()
	if held, ok := c.local.Inspect(key); ok && held.Value != nil && held.Left > 0 {
		return c.fresh(held.Value, now), nil
	}
	value := c.fleet.GetOne(ctx, id)
	if value.Err != nil || len(value.Data) == 0 {
		return nil, value.Err
	}
	e, ok := c.format.decode(id, value.Data)
	if !ok {
		return nil, nil
	}
	return c.fresh(e, now), nil
}

func (c *Cache[K, V]) fresh(e *entry[V], now time.Time) *entry[V] {
	if e.null || e.expired || e.past(now) || c.cleared(e) {
		return nil
	}
	return e
}

// fromSource loads key for nobody but its caller.
func (c *Cache[K, V]) fromSource(ctx context.Context, key K, id string) (*entry[V], error) {
	ctx, stop := c.loadContext(ctx)
	defer stop()
	place, err := c.breaker.Acquire(ctx, background)
	if err != nil {
		return nil, c.why(ctx, err)
	}
	defer place.Release()
	j := &job[K, V]{key: key, id: id, class: background}
	c.load(ctx, place, []*job[K, V]{j})
	return j.loaded.entry, j.loaded.err
}
