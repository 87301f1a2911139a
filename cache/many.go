package cache

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/levee-go/levee/internal/contain"
)

// GetMany returns the values of keys. A key that does not exist is absent from
// the map, and one that is given twice counts once. If some keys have no answer, the
// error is a [*BatchError] that says why, and the map, which is never nil, holds the
// others. GetMany returns when all are there or ctx ends.
//
// It saves no round trips: at present it is a Get of each key, 64 of them at a time.
func (c *Cache[K, V]) GetMany(ctx context.Context, keys []K) (map[K]V, error) {
	values := make(map[K]V, len(keys))
	var failed BatchError
	var mu sync.Mutex // guards values and failed
	var reads errgroup.Group
	reads.SetLimit(64)
	for _, key := range unique(keys) {
		reads.Go(func() error {
			var value V
			// A panic of Source.Key, Source.Clone or the filter would end the process:
			// nobody can recover it on this goroutine.
			contain.Call(func() (err error) {
				value, err = c.Get(ctx, key)
				return err
			}, func(err error) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					values[key] = value
				case !errors.Is(err, ErrNotFound):
					failed.add(key, err)
				}
			})
			return nil
		})
	}
	_ = reads.Wait() // the errors are in failed
	if len(failed.Causes) > 0 {
		return values, &failed
	}
	return values, nil
}

func (e *BatchError) add(key any, err error) {
	if e.Causes == nil {
		e.Causes = map[any]error{}
	}
	e.Causes[key] = err
}

func unique[K comparable](keys []K) []K {
	seen := make(map[K]struct{}, len(keys))
	first := make([]K, 0, len(keys))
	for _, key := range keys {
		if _, ok := seen[key]; !ok {
			seen[key] = struct{}{}
			first = append(first, key)
		}
	}
	return first
}

// one makes a Loader of a BatchLoader.
func one[K comparable, V any](load BatchLoader[K, V]) Loader[K, V] {
	return func(ctx context.Context, key K) (V, error) {
		values, err := load(ctx, []K{key})
		value, ok := values[key]
		if err == nil && !ok {
			err = ErrNotFound
		}
		return value, err
	}
}
