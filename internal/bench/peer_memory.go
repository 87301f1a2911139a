package main

import (
	"context"
	"errors"
	"time"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/maypok86/otter/v2"
	"github.com/viccon/sturdyc"
)

// These have a tier in the process and no Redis.

// sturdy is sturdyc with the shards and the eviction of its README, and room for all keys.
type sturdy[V any] struct {
	opening[V]
	*sturdyc.Client[V]
}

func openSturdyc[V any](o opening[V]) (reader[V], error) {
	options := []sturdyc.Option{sturdyc.WithMissingRecordStorage()}
	if o.contender == "sturdyc early" {
		options = append(options, sturdyc.WithEarlyRefreshes(o.ttl/4, o.ttl/2, o.ttl*3/4, 10*time.Millisecond))
	}
	return &sturdy[V]{o, sturdyc.New[V](max(o.capacity, 10_000), 10, o.ttl, 10, options...)}, nil
}

func (r *sturdy[V]) Get(ctx context.Context, key string) (V, error) {
	v, err := r.GetOrFetch(ctx, key, func(ctx context.Context) (V, error) {
		v, err := r.load(ctx, key)
		if errors.Is(err, errAbsent) {
			err = sturdyc.ErrNotFound
		}
		return v, err
	})
	if errors.Is(err, sturdyc.ErrMissingRecord) || errors.Is(err, sturdyc.ErrNotFound) {
		err = errAbsent
	}
	return v, err
}

func (r *sturdy[V]) Invalidate(_ context.Context, key string) error {
	r.Delete(key)
	return nil
}

func (*sturdy[V]) Close() {}

// otters is otter as its README loads.
type otters[V any] struct {
	opening[V]
	*otter.Cache[string, V]
}

func openOtter[V any](o opening[V]) (reader[V], error) {
	c, err := otter.New(&otter.Options[string, V]{
		MaximumSize: max(o.capacity, 10_000), ExpiryCalculator: otter.ExpiryWriting[string, V](o.ttl),
	})
	return &otters[V]{o, c}, err
}

func (r *otters[V]) Get(ctx context.Context, key string) (V, error) {
	return r.Cache.Get(ctx, key, otter.LoaderFunc[string, V](r.load))
}

func (r *otters[V]) Close() { r.StopAllGoroutines() }

// bare is ristretto with the settings of its README, for as many keys, without a TTL or with one.
type bare[V any] struct {
	opening[V]
	*ristretto.Cache[string, V]
	ttl time.Duration
}

func openRistretto[V any](o opening[V]) (reader[V], error) {
	n := int64(max(o.capacity, 10_000))
	c, err := ristretto.NewCache(&ristretto.Config[string, V]{
		NumCounters: 10 * n, MaxCost: n, BufferItems: 64, IgnoreInternalCost: true,
	})
	r := &bare[V]{o, c, 0}
	if o.contender == "ristretto TTL" {
		r.ttl = o.ttl
	}
	return r, err
}

func (r *bare[V]) Get(ctx context.Context, key string) (V, error) {
	v, ok := r.Cache.Get(key)
	if ok {
		return v, nil
	}
	v, err := r.load(ctx, key)
	if err == nil {
		r.SetWithTTL(key, v, 1, r.ttl)
		r.Wait()
	}
	return v, err
}

func (r *bare[V]) Close() { r.Cache.Close() }
