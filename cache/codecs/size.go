package codecs

import (
	"reflect"
	"strings"
	"time"
)

// Size returns an estimate of the memory that a value takes.
func (plain) Size(v any) int { return sizeOf(v) }

// sizeOf returns about how many bytes v takes in memory, with everything that it refers to.
// Memory that several pointers refer to counts several times.
func sizeOf(v any) int {
	switch v := v.(type) {
	case nil:
		return 0
	case []byte:
		return 24 + cap(v)
	case string:
		return 16 + len(v)
	}
	w := walk{left: 1 << 20}
	rv := reflect.ValueOf(v)
	return int(rv.Type().Size()) + w.behind(rv, 0)
}

// A walk goes through a value. It ends after left steps, and at a depth that no encoding reaches.
type walk struct{ left int }

const deepest = 100

// behind returns the size of what v refers to, beyond v's own Type().Size().
func (w *walk) behind(v reflect.Value, depth int) (size int) {
	t := v.Type()
	if w.left--; w.left < 0 || depth > deepest || isShared(t) {
		return 0
	}
	switch v.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Pointer:
		if !v.IsNil() && !isShared(t.Elem()) {
			return int(t.Elem().Size()) + w.behind(v.Elem(), depth+1)
		}
	case reflect.Interface:
		if !v.IsNil() {
			return int(v.Elem().Type().Size()) + w.behind(v.Elem(), depth+1)
		}
	case reflect.Slice:
		return v.Cap()*int(t.Elem().Size()) + w.behindEach(v, depth)
	case reflect.Array:
		return w.behindEach(v, depth)
	case reflect.Map:
		size = 48 + v.Len()*(8+int(t.Key().Size()+t.Elem().Size()))*8/7
		for at := v.MapRange(); at.Next(); {
			size += w.behind(at.Key(), depth+1) + w.behind(at.Value(), depth+1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			size += w.behind(v.Field(i), depth+1)
		}
	}
	return size
}

// behindEach returns the size of what the elements of v refer to.
func (w *walk) behindEach(v reflect.Value, depth int) (size int) {
	if kind := v.Type().Elem().Kind(); kind <= reflect.Complex128 {
		return 0
	}
	for i := range v.Len() {
		size += w.behind(v.Index(i), depth+1)
	}
	return size
}

// isShared reports whether the memory behind a type belongs to no single value: locations of
// times, and what protobuf knows of a message's type.
func isShared(t reflect.Type) bool {
	return t == reflect.TypeFor[time.Time]() || t == reflect.TypeFor[time.Location]() || strings.HasPrefix(t.PkgPath(), "google.golang.org/protobuf/internal/")
}
