package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
)

// leveeReader is a cache with default options over a go-redis client with default options.
type leveeReader[V any] struct {
	*cache.Cache[string, V]
	rdb redis.UniversalClient
}

func openLevee[V any](o opening[V]) (reader[V], error) {
	options := cache.Options{
		Name: "bench", TTL: o.ttl, Logger: slog.New(slog.DiscardHandler),
		IsNotFound: func(err error) bool { return errors.Is(err, errAbsent) },
	}
	if o.contender == "levee + filter" {
		filter, err := leveeFilter(o.rows)
		if err != nil {
			return nil, err
		}
		options.Filter = filter
	}
	if o.contender == "levee unlimited" {
		unlimited, err := breaker.New(breaker.Options{MaxConcurrent: -1})
		if err != nil {
			return nil, err
		}
		options.Breaker = unlimited
	}
	options.Local.MaxBytes = max(64<<20, int64(o.capacity)<<10) // the default, or room for all
	if o.capacity == 0 {
		options.Local.MaxBytes = -1
	}
	var rdb redis.UniversalClient // nil: in this process only
	if o.redis != "" {
		rdb = redis.NewClient(&redis.Options{Addr: o.redis})
	}
	c, err := cache.NewFrom(rdb, cache.Source[string, V]{
		Load: cache.Loader[string, V](o.load),
		Key:  func(key string) string { return key[len(keyPrefix):] }, // the cache has a name of its own
	}, options)
	if err != nil {
		return nil, err
	}
	r := leveeReader[V]{c, rdb}
	// As a service does before it says that it is ready.
	if err := until(patience, func() bool { return rdb == nil || c.Stats().Live }); err != nil {
		r.Close()
		return nil, fmt.Errorf("levee hears no messages: %w", err)
	}
	return r, nil
}

// leveeFilter is a filter with default options that holds the ids from 0 on.
func leveeFilter(ids int) (*bloom.Filter, error) {
	f, err := bloom.New(bloom.Options{Capacity: uint64(ids), Complete: true})
	for id := 0; err == nil && id < ids; id++ {
		err = f.Add(context.Background(), strconv.Itoa(id))
	}
	return f, err
}

func (r leveeReader[V]) Get(ctx context.Context, key string) (V, error) {
	v, err := r.Cache.Get(ctx, key)
	if errors.Is(err, cache.ErrNotFound) {
		err = errAbsent
	}
	return v, err
}

func (r leveeReader[V]) Invalidate(ctx context.Context, key string) error {
	return r.Cache.Invalidate(ctx, key)
}

func (r leveeReader[V]) Close() {
	_ = r.Cache.Close()
	if r.rdb != nil {
		_ = r.rdb.Close()
	}
}
