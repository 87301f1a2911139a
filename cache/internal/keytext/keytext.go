// Package keytext turns keys of a cache into text, and back.
package keytext

import (
	"encoding"
	"errors"
	"reflect"
	"strconv"
	"unsafe"
)

// Of returns a function that turns keys into their default texts. The error says why K has none.
func Of[K comparable]() (func(K) (string, error), error) {
	of := reflect.TypeFor[K]()
	switch {
	case of.Implements(textMarshaler):
		return marshaled[K], checkMarshaler(of, "")
	case of.Kind() == reflect.String:
		return func(key K) (string, error) {
			if s, ok := any(key).(string); ok {
				return s, nil
			}
			return reflect.ValueOf(key).String(), nil
		}, nil
	// Most keys are integers: this takes one allocation less than the general way.
	case of.Kind() >= reflect.Int && of.Kind() <= reflect.Int64:
		return func(key K) (string, error) { return strconv.FormatInt(reflect.ValueOf(key).Int(), 10), nil }, nil
	case of.Kind() >= reflect.Uint && of.Kind() <= reflect.Uintptr:
		return func(key K) (string, error) { return strconv.FormatUint(reflect.ValueOf(key).Uint(), 10), nil }, nil
	}
	parts, err := partsOf(of)
	if err != nil {
		return nil, err
	}
	return func(key K) (string, error) { return parts.text(unsafe.Pointer(&key)) }, nil
}

// marshaled returns the text of a key that implements encoding.TextMarshaler.
func marshaled[K comparable](key K) (string, error) {
	marshaler, ok := any(key).(encoding.TextMarshaler)
	// ok is false if K is an interface and this one is nil. Few MarshalText methods
	// accept a nil pointer.
	if v := reflect.ValueOf(key); !ok || v.Kind() == reflect.Pointer && v.IsNil() {
		return "", errors.New("nil")
	}
	text, err := marshaler.MarshalText()
	return string(text), err
}

// Parser returns the function that turns a text of Of back into a key, or nil if K has none.
func Parser[K comparable]() func(id string) (K, error) {
	of := reflect.TypeFor[K]()
	switch {
	case of.Implements(textMarshaler):
		if !reflect.PointerTo(of).Implements(textUnmarshaler) {
			return nil
		}
		return func(id string) (key K, err error) {
			err = any(&key).(encoding.TextUnmarshaler).UnmarshalText([]byte(id))
			return key, err
		}
	case of.Kind() == reflect.String:
		return func(id string) (key K, _ error) {
			reflect.ValueOf(&key).Elem().SetString(id)
			return key, nil
		}
	}
	parts, err := partsOf(of)
	if err != nil || !parts.comeBack() {
		return nil
	}
	return func(id string) (key K, err error) {
		err = parts.set(unsafe.Pointer(&key), id)
		return key, err
	}
}
