package audit

import "reflect"

// same reports whether two values are equal but for what means nothing: it is reflect.DeepEqual, except
// that a method Equal decides where a type has one, as time.Time's does for locations, and that empty slices
// and maps are equal to nil.
func same[V any](a, b V) bool {
	return alike(reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem(), map[pair]bool{})
}

// A pair is two pointers, maps or slices that are being compared, or were found equal. If they come again, the
// value has a cycle, or shares parts.
type pair struct {
	a, b     uintptr
	ofA, ofB int // lengths of slices
	typ      reflect.Type
}

func alike(a, b reflect.Value, seen map[pair]bool) bool {
	if a.CanInterface() && a.Kind() != reflect.Interface {
		if equal := a.MethodByName("Equal"); equal.IsValid() && equal.Type().NumIn() == 1 && equal.Type().In(0) == a.Type() &&
			equal.Type().NumOut() == 1 && equal.Type().Out(0).Kind() == reflect.Bool && !isNil(a) && !isNil(b) {
			return equal.Call([]reflect.Value{b})[0].Bool()
		}
	}
	switch a.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice:
		p := pair{a: a.Pointer(), b: b.Pointer(), typ: a.Type()}
		if a.Kind() == reflect.Slice {
			p.ofA, p.ofB = a.Len(), b.Len()
		}
		if seen[p] {
			return true
		}
		seen[p] = true
	}
	switch a.Kind() {
	case reflect.Pointer, reflect.Interface:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() && b.IsNil()
		}
		return a.Elem().Type() == b.Elem().Type() && alike(a.Elem(), b.Elem(), seen)
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !alike(a.Index(i), b.Index(i), seen) {
				return false
			}
		}
		return true
	case reflect.Map:
		if a.Len() != b.Len() {
			return false
		}
		for keys := a.MapRange(); keys.Next(); {
			if there := b.MapIndex(keys.Key()); !there.IsValid() || !alike(keys.Value(), there, seen) {
				return false
			}
		}
		return true
	case reflect.Struct:
		for i := range a.NumField() {
			if !alike(a.Field(i), b.Field(i), seen) {
				return false
			}
		}
		return true
	case reflect.Func:
		return a.IsNil() && b.IsNil()
	}
	return a.Equal(b)
}

func isNil(v reflect.Value) bool { return v.Kind() == reflect.Pointer && v.IsNil() }
