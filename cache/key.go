package cache

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strconv"
)

// keyFunc returns the function that turns keys into ids, the text of a key that
// processes share, and refuses those that are too long.
func keyFunc[K comparable](custom func(K) string, longest int) (func(K) (string, error), error) {
	text := textOf[K]()
	if custom != nil {
		text = func(key K) (string, error) { return custom(key), nil }
	}
	if text == nil {
		return nil, fmt.Errorf("cache: Source.Key is needed for keys of type %s", reflect.TypeFor[K]())
	}
	return func(key K) (string, error) {
		id, err := text(key)
		switch {
		case err != nil:
			return "", fmt.Errorf("%w: %w", ErrInvalidKey, err)
		case len(id) > longest:
			return "", fmt.Errorf("%w: %d bytes, more than MaxKey %d: %.64q", ErrInvalidKey, len(id), longest, id)
		}
		return id, nil
	}, nil
}

// textOf returns the text form that K has by itself, nil if it has none.
func textOf[K comparable]() func(K) (string, error) {
	kind := reflect.TypeFor[K]()
	switch {
	case kind.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return func(key K) (string, error) {
			marshaler, ok := any(key).(encoding.TextMarshaler)
			// ok is false if K is an interface and this one is nil. Few MarshalText bear
			// a nil pointer.
			if v := reflect.ValueOf(key); !ok || v.Kind() == reflect.Pointer && v.IsNil() {
				return "", errors.New("nil")
			}
			text, err := marshaler.MarshalText()
			return string(text), err
		}
	case kind.Kind() == reflect.String:
		return func(key K) (string, error) {
			if s, ok := any(key).(string); ok {
				return s, nil
			}
			return reflect.ValueOf(key).String(), nil
		}
	case kind.Kind() >= reflect.Int && kind.Kind() <= reflect.Int64:
		return func(key K) (string, error) { return strconv.FormatInt(reflect.ValueOf(key).Int(), 10), nil }
	case kind.Kind() >= reflect.Uint && kind.Kind() <= reflect.Uintptr:
		return func(key K) (string, error) { return strconv.FormatUint(reflect.ValueOf(key).Uint(), 10), nil }
	}
	return nil
}
