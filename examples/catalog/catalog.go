// Package catalog is a service's package as one would write it, small enough to show in
// its tests how code that uses levee is tested: see docs/testing.md.
package catalog

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
)

// A Product is a row.
type Product struct {
	ID    int64
	Name  string
	Cents int64
}

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

// Open makes a Catalog. Without rdb it works in this process alone.
func Open(rdb redis.UniversalClient, store Store, o cache.Options) (*Catalog, error) {
	o.Name, o.TTL = "product", 10*time.Minute
	products, err := cache.New(rdb, store.Product, o)
	if err != nil {
		return nil, err
	}
	return &Catalog{store, products}, nil
}

// Close ends the Catalog.
func (c *Catalog) Close() error { return c.products.Close() }

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
