// Package catalog is a service's package as one would write it, small enough to show in
// its tests how code that uses levee is tested: see docs/testing.md.
package catalog

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/cache"
)

// A Product is a row.
type Product struct {
	ID    int64
	Name  string
	Cents int64
}

// Options are those of the cache of products. main passes them to cache.New, tests to cachetest.New.
var Options = cache.Options{Name: "product", TTL: 10 * time.Minute}

// A Store is the database. Tests have one of their own, see table.
type Store interface {
	Product(ctx context.Context, id int64) (Product, error) // sql.ErrNoRows: there is none
	Rename(ctx context.Context, id int64, name string) error
}

// A Catalog answers for products.
type Catalog struct {
	store    Store
	products *cache.Cache[int64, Product]
}

// New makes a Catalog of a store and of a cache of its products, which the caller closes.
func New(store Store, products *cache.Cache[int64, Product]) *Catalog {
	return &Catalog{store, products}
}

// Name returns the name of a product, "" if there is none.
func (c *Catalog) Name(ctx context.Context, id int64) (string, error) {
	p, err := c.products.Get(ctx, id)
	if errors.Is(err, cache.ErrNotFound) {
		return "", nil
	}
	return p.Name, err
}

// Rename gives a product another name.
func (c *Catalog) Rename(ctx context.Context, id int64, name string) error {
	return cache.Committed(c.products.Write(ctx, []int64{id}, func(ctx context.Context) error { return c.store.Rename(ctx, id, name) }))
}
