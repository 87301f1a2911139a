// Package administered is what package cacheadmin needs of a cache, and nobody else.
package administered

import (
	"context"
	"errors"
)

// ErrNoKey reports that the text of a key cannot be turned back into the key, which only
// loading it needs.
var ErrNoKey = errors.New("this cache cannot turn the text of a key back into the key, which a load needs: invalidate it")

// A Cache is one whose keys are named by their texts. The functions return what those of
// the cache return that have their names, and the first cache.ErrInvalidKey before anything
// is done.
type Cache struct {
	Invalidate func(ctx context.Context, ids []string) error
	Expire     func(ctx context.Context, ids []string) error
	Refresh    func(ctx context.Context, ids []string) error
}
