//go:build gozero

package main

import (
	"context"
	"errors"

	"github.com/zeromicro/go-zero/core/logx"
	zerocache "github.com/zeromicro/go-zero/core/stores/cache"
	zeroredis "github.com/zeromicro/go-zero/core/stores/redis"
	"github.com/zeromicro/go-zero/core/syncx"
)

func init() { logx.Disable() } // it writes to stdout by itself

// withGoZero says whether go-zero is in this build.
const withGoZero = true

// goZero is go-zero's cache on one node, which always keeps JSON.
type goZero[V any] struct {
	opening[V]
	zerocache.Cache
}

func openGoZero[V any](o opening[V]) (reader[V], error) {
	rdb, err := zeroredis.NewRedis(zeroredis.RedisConf{Host: o.redis, Type: zeroredis.NodeType})
	if err != nil {
		return nil, err
	}
	c := zerocache.NewNode(rdb, syncx.NewSingleFlight(), zerocache.NewStat("bench"), errAbsent, zerocache.WithExpiry(o.ttl))
	return &goZero[V]{o, c}, nil
}

func (r *goZero[V]) Get(ctx context.Context, key string) (v V, err error) {
	err = r.TakeCtx(ctx, &v, key, func(to any) error {
		loaded, err := r.load(ctx, key)
		if err == nil {
			*to.(*V) = loaded
		}
		return err
	})
	if errors.Is(err, errAbsent) {
		err = errAbsent
	}
	return v, err
}

func (r *goZero[V]) Invalidate(ctx context.Context, key string) error { return r.DelCtx(ctx, key) }

func (*goZero[V]) Close() {}
