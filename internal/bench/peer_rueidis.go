package main

import (
	"context"

	"github.com/redis/rueidis"
)

// rueidisReader is a GET, plain or with the client-side cache, and on a miss a load and a SET.
type rueidisReader[V any] struct {
	opening[V]
	rueidis.Client
}

func openRueidis[V any](o opening[V]) (reader[V], error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{o.redis}})
	return &rueidisReader[V]{o, c}, err
}

func (r *rueidisReader[V]) Get(ctx context.Context, key string) (V, error) {
	var reply rueidis.RedisResult
	if r.contender == "rueidis DoCache" {
		reply = r.DoCache(ctx, r.B().Get().Key(key).Cache(), r.ttl)
	} else {
		reply = r.Do(ctx, r.B().Get().Key(key).Build())
	}
	data, err := reply.AsBytes()
	if err == nil {
		return r.kind.decode(data)
	}
	if !rueidis.IsRedisNil(err) {
		var none V
		return none, err
	}
	return r.fill(ctx, key)
}

func (r *rueidisReader[V]) fill(ctx context.Context, key string) (V, error) {
	v, err := r.load(ctx, key)
	if err != nil {
		return v, err
	}
	data, err := r.kind.encode(v)
	if err != nil {
		return v, err
	}
	return v, r.Do(ctx, r.B().Set().Key(key).Value(rueidis.BinaryString(data)).Px(r.ttl).Build()).Error()
}

func (r *rueidisReader[V]) GetMany(ctx context.Context, keys []string) (map[string]V, error) {
	replies, err := rueidis.MGet(r.Client, ctx, keys)
	if err != nil {
		return nil, err
	}
	got := make(map[string]V, len(keys))
	for key, reply := range replies {
		data, err := reply.AsBytes()
		if err != nil {
			return nil, err
		}
		if got[key], err = r.kind.decode(data); err != nil {
			return nil, err
		}
	}
	return got, nil
}

func (r *rueidisReader[V]) Invalidate(ctx context.Context, key string) error {
	return r.Do(ctx, r.B().Del().Key(key).Build()).Error()
}

func (r *rueidisReader[V]) Close() { r.Client.Close() }
