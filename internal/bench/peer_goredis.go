package main

import (
	"context"
	"errors"
	"time"

	rediscache "github.com/go-redis/cache/v9"
	"github.com/redis/go-redis/v9"
)

// goRedis is what most services have: a GET, and on a miss a load and a SET.
type goRedis[V any] struct {
	opening[V]
	rdb *redis.Client
	cmd redis.Cmdable // rdb, or its AutoPipeline
}

func openGoRedis[V any](o opening[V]) (reader[V], error) {
	rdb := redis.NewClient(&redis.Options{Addr: o.redis})
	r := &goRedis[V]{o, rdb, rdb}
	if o.contender == "go-redis AutoPipeline" {
		pipeline, err := rdb.AutoPipeline()
		if err != nil {
			return nil, err
		}
		r.cmd = pipeline
	}
	return r, nil
}

func (r *goRedis[V]) Get(ctx context.Context, key string) (v V, err error) {
	var data []byte
	if r.contender == "go-redis GETRANGE" { // as levee reads
		data, err = r.cmd.GetRange(ctx, key, 0, 1<<20).Bytes()
	} else {
		data, err = r.cmd.Get(ctx, key).Bytes()
	}
	if err == nil && len(data) > 0 {
		return r.kind.decode(data)
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return v, err
	}
	return r.fill(ctx, key)
}

func (r *goRedis[V]) fill(ctx context.Context, key string) (V, error) {
	v, err := r.load(ctx, key)
	if err != nil {
		return v, err
	}
	data, err := r.kind.encode(v)
	if err != nil {
		return v, err
	}
	return v, r.cmd.Set(ctx, key, data, r.ttl).Err()
}

// GetMany reads with MGET, or with a pipeline of GETRANGEs, as levee does.
func (r *goRedis[V]) GetMany(ctx context.Context, keys []string) (map[string]V, error) {
	if r.contender == "go-redis MGET" {
		return r.mget(ctx, keys)
	}
	pipeline := r.rdb.Pipeline()
	replies := make([]*redis.StringCmd, len(keys))
	for i, key := range keys {
		replies[i] = pipeline.GetRange(ctx, key, 0, 1<<20)
	}
	if _, err := pipeline.Exec(ctx); err != nil {
		return nil, err
	}
	got := make(map[string]V, len(keys))
	for i, reply := range replies {
		data, err := reply.Bytes()
		if err != nil {
			return nil, err
		}
		if got[keys[i]], err = r.kind.decode(data); err != nil {
			return nil, err
		}
	}
	return got, nil
}

func (r *goRedis[V]) mget(ctx context.Context, keys []string) (map[string]V, error) {
	replies, err := r.cmd.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, err
	}
	got := make(map[string]V, len(keys))
	for i, reply := range replies {
		text, _ := reply.(string)
		if got[keys[i]], err = r.kind.decode([]byte(text)); err != nil {
			return nil, err
		}
	}
	return got, nil
}

func (r *goRedis[V]) Invalidate(ctx context.Context, key string) error {
	return r.cmd.Del(ctx, key).Err()
}

func (r *goRedis[V]) Close() { _ = r.rdb.Close() }

// goRedisCache is go-redis/cache as its README uses it, with a local tier if there is to be one.
type goRedisCache[V any] struct {
	opening[V]
	*rediscache.Cache
	rdb *redis.Client
}

func openGoRedisCache[V any](o opening[V]) (reader[V], error) {
	rdb := redis.NewClient(&redis.Options{Addr: o.redis})
	options := rediscache.Options{Redis: rdb}
	if o.capacity > 0 {
		options.LocalCache = rediscache.NewTinyLFU(o.capacity, time.Minute)
	}
	return &goRedisCache[V]{o, rediscache.New(&options), rdb}, nil
}

func (r *goRedisCache[V]) Get(ctx context.Context, key string) (v V, err error) {
	err = r.Once(&rediscache.Item{
		Ctx: ctx, Key: key, Value: &v, TTL: r.ttl,
		Do: func(*rediscache.Item) (any, error) { return r.load(ctx, key) },
	})
	return v, err
}

func (r *goRedisCache[V]) Invalidate(ctx context.Context, key string) error {
	return r.Delete(ctx, key)
}

func (r *goRedisCache[V]) Close() { _ = r.rdb.Close() }
