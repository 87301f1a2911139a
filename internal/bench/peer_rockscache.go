package main

import (
	"context"
	"time"

	"github.com/dtm-labs/rockscache"
	"github.com/redis/go-redis/v9"
)

// rocks is rockscache with its default options, but for what its name says.
type rocks[V any] struct {
	opening[V]
	*rockscache.Client
	rdb *redis.Client
}

func openRockscache[V any](o opening[V]) (reader[V], error) {
	rdb := redis.NewClient(&redis.Options{Addr: o.redis})
	options := rockscache.NewDefaultOptions()
	switch o.contender {
	case "rockscache 10 ms":
		options.LockSleep = 10 * time.Millisecond
	case "rockscache strong":
		options.StrongConsistency = true
	}
	return &rocks[V]{o, rockscache.NewClient(rdb, options), rdb}, nil
}

func (r *rocks[V]) Get(ctx context.Context, key string) (v V, err error) {
	text, err := r.Fetch2(ctx, key, r.ttl, func() (string, error) { return r.loadText(ctx, key) })
	switch {
	case err != nil:
		return v, err
	case text == "": // what it knows not to exist
		return v, errAbsent
	}
	return r.kind.decode([]byte(text))
}

func (r *rocks[V]) loadText(ctx context.Context, key string) (string, error) {
	v, err := r.load(ctx, key)
	if err == errAbsent { //nolint:errorlint // our own loader returns it as it is
		return "", nil
	}
	if err != nil {
		return "", err
	}
	data, err := r.kind.encode(v)
	return string(data), err
}

func (r *rocks[V]) GetMany(ctx context.Context, keys []string) (map[string]V, error) {
	texts, err := r.FetchBatch2(ctx, keys, r.ttl, func(wanted []int) (map[int]string, error) {
		loaded := make(map[int]string, len(wanted))
		for _, i := range wanted {
			text, err := r.loadText(ctx, keys[i])
			if err != nil {
				return nil, err
			}
			loaded[i] = text
		}
		return loaded, nil
	})
	if err != nil {
		return nil, err
	}
	got := make(map[string]V, len(keys))
	for i, text := range texts {
		if got[keys[i]], err = r.kind.decode([]byte(text)); err != nil {
			return nil, err
		}
	}
	return got, nil
}

func (r *rocks[V]) Invalidate(ctx context.Context, key string) error {
	return r.TagAsDeleted2(ctx, key)
}

func (r *rocks[V]) Close() { _ = r.rdb.Close() }
