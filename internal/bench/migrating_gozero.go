//go:build gozero

package main

import (
	"context"
	"fmt"

	zerocache "github.com/zeromicro/go-zero/core/stores/cache"
)

// docs/migrating.md, go-zero.
func _(ctx context.Context, c zerocache.Cache, store interface {
	Product(ctx context.Context, id int64) (product, error)
	Rename(ctx context.Context, id int64, name string) error
}) error {
	var p product
	key := fmt.Sprint("product:", 42)
	err := c.TakeCtx(ctx, &p, key, func(v any) error { // sqlc.CachedConn.QueryRowCtx does this
		row, err := store.Product(ctx, 42)
		if err == nil {
			*v.(*product) = row
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := store.Rename(ctx, 42, "new"); err != nil { // sqlc.CachedConn.ExecCtx does both
		return err
	}
	return c.DelCtx(ctx, key)
}
