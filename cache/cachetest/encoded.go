package cachetest

import (
	"context"
	"fmt"
	"reflect"

	"github.com/levee-go/levee/cache"
)

// encoded returns src with loaders whose values have been encoded and decoded. The functions of
// src that are nil stay nil.
func encoded[K comparable, V any](src cache.Source[K, V], codec cache.Codec) cache.Source[K, V] {
	through := func(value V, err error) (V, error) {
		if err == nil {
			value, err = roundTrip(codec, value)
		}
		return value, err
	}
	if load := src.Load; load != nil {
		src.Load = func(ctx context.Context, key K) (V, error) { return through(load(ctx, key)) }
	}
	if load := src.LoadEntry; load != nil {
		src.LoadEntry = func(ctx context.Context, key K, e *cache.Entry[V]) (V, error) { return through(load(ctx, key, e)) }
	}
	if load := src.LoadMany; load != nil {
		src.LoadMany = func(ctx context.Context, keys []K) (map[K]V, error) {
			values, err := load(ctx, keys)
			read := make(map[K]V, len(values))
			for key, value := range values {
				if read[key], err = through(value, err); err != nil {
					return nil, err
				}
			}
			return read, err
		}
	}
	return src
}

// roundTrip returns what codec decodes of the encoded value. Without a codec it does what a cache
// does: strings and bytes stay as they are, other types become JSON.
func roundTrip[V any](codec cache.Codec, value V) (back V, err error) {
	if v := reflect.ValueOf(&value).Elem(); v.Kind() == reflect.Pointer && v.IsNil() {
		return value, nil // the key does not exist
	}
	if codec == nil {
		switch v := any(value).(type) {
		case string:
			return value, nil
		case []byte:
			return any(append([]byte{}, v...)).(V), nil
		}
		codec = cache.JSON
	}
	data, err := codec.Marshal(value)
	if err == nil {
		err = codec.Unmarshal(data, &back)
	}
	if err != nil {
		err = fmt.Errorf("cachetest: the codec: %w", err)
	}
	return back, err
}
