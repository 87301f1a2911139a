package cache

import (
	"database/sql"
	"errors"
	"reflect"
)

// isNotFound reports whether a loader's error says that the source has no such key.
func (c *Cache[K, V]) isNotFound(err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, ErrNotFound), errors.Is(err, sql.ErrNoRows):
		return true
	}
	return c.o.IsNotFound != nil && c.o.IsNotFound(err)
}

// isNil reports whether a value is a nil pointer, which a loader returns that has found
// nothing: a caller who has looked at the error alone would panic. Only a V that is a
// pointer's type has such values: an empty list is a value.
func isNil[V any](value *V) bool {
	v := reflect.ValueOf(value).Elem()
	return v.Kind() == reflect.Pointer && v.IsNil()
}
