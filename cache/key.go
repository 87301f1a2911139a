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

// parserOf returns the function that turns text back into a key, nil if K has none: the
// other way round than textOf.
func parserOf[K comparable]() func(id string) (K, error) {
	kind := reflect.TypeFor[K]()
	if kind.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		if !reflect.PointerTo(kind).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
			return nil
		}
		return func(id string) (key K, err error) {
			err = any(&key).(encoding.TextUnmarshaler).UnmarshalText([]byte(id))
			return key, err
		}
	}
	var set func(v reflect.Value, id string) error
	switch {
	case kind.Kind() == reflect.String:
		set = func(v reflect.Value, id string) error { v.SetString(id); return nil }
	case kind.Kind() >= reflect.Int && kind.Kind() <= reflect.Int64:
		set = func(v reflect.Value, id string) error {
			n, err := strconv.ParseInt(id, 10, kind.Bits())
			v.SetInt(n)
			return err
		}
	case kind.Kind() >= reflect.Uint && kind.Kind() <= reflect.Uintptr:
		set = func(v reflect.Value, id string) error {
			n, err := strconv.ParseUint(id, 10, kind.Bits())
			v.SetUint(n)
			return err
		}
	default:
		return nil
	}
	return func(id string) (key K, err error) {
		err = set(reflect.ValueOf(&key).Elem(), id)
		return key, err
	}
}
