package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A reader is a contender that reads through: what it does not have, it loads and keeps.
type reader[V any] interface {
	// Get returns errAbsent if the source has no such key.
	Get(ctx context.Context, key string) (V, error)
	Close()
}

// A batchReader reads many keys in one call.
type batchReader[V any] interface {
	reader[V]
	GetMany(ctx context.Context, keys []string) (map[string]V, error)
}

// An invalidator drops a key, as its documentation says to do after the row has changed.
type invalidator[V any] interface {
	reader[V]
	Invalidate(ctx context.Context, key string) error
}

// A loader reads the value of a key from the source.
type loader[V any] func(ctx context.Context, key string) (V, error)

// errAbsent says that the source does not have a key.
var errAbsent = errors.New("absent")

// An opening is what a contender is to know when it is opened.
type opening[V any] struct {
	contender string
	redis     string // address
	load      loader[V]
	kind      kind[V]
	ttl       time.Duration
	capacity  int // entries that a tier in the process has to hold; 0: no such tier where it can be switched off
	rows      int // ids that the source has, for contenders with a filter
}

// openReader opens a contender.
func openReader[V any](o opening[V]) (reader[V], error) {
	if o.ttl == 0 {
		o.ttl = 10 * time.Minute
	}
	switch o.contender {
	case "nothing":
		return nothing[V]{o}, nil
	case "levee", "levee + filter", "levee unlimited":
		return openLevee(o)
	case "go-redis GET", "go-redis AutoPipeline", "go-redis GETRANGE", "go-redis MGET", "pipeline", "pipeline of 64":
		return openGoRedis(o)
	case "go-redis/cache":
		return openGoRedisCache(o)
	case "rueidis GET", "rueidis DoCache", "rueidis MGET":
		return openRueidis(o)
	case "rockscache", "rockscache 10 ms", "rockscache strong":
		return openRockscache(o)
	case "go-zero":
		return openGoZero(o)
	case "sturdyc", "sturdyc early":
		return openSturdyc(o)
	case "otter":
		return openOtter(o)
	case "ristretto", "ristretto TTL":
		return openRistretto(o)
	case "bits-and-blooms":
		return openBehindBloom(o)
	}
	return nil, fmt.Errorf("there is no contender %q", o.contender)
}

// nothing answers at once. It shows what the measuring itself costs.
type nothing[V any] struct{ o opening[V] }

func (n nothing[V]) Get(_ context.Context, key string) (V, error) {
	return n.o.kind.make(idOf(key)), nil
}
func (nothing[V]) Close() {}

// A source is a database that is asked by key and counts.
type source[V any] struct {
	kind  kind[V]
	takes time.Duration // a load
	rows  int           // it has the ids below this one; 0: all
	loads atomic.Int64
}

func (s *source[V]) load(ctx context.Context, key string) (v V, err error) {
	s.loads.Add(1)
	if s.takes > 0 {
		select {
		case <-time.After(s.takes):
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
	id := idOf(key)
	if s.rows > 0 && id >= s.rows {
		return v, errAbsent
	}
	return s.kind.make(id), nil
}

// fill has a reader load all keys, 64 at a time.
func fill[V any](ctx context.Context, r reader[V], keys []string) error {
	var next atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, 64)
	for worker := range errs {
		all.Go(func() {
			for errs[worker] == nil {
				i := int(next.Add(1)) - 1
				if i >= len(keys) {
					return
				}
				_, errs[worker] = r.Get(ctx, keys[i])
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
