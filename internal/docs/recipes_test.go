package docs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/lock"
	"github.com/levee-go/levee/mutexrebuild"
)

// The pieces of docs/recipes.md that no example of a package has.

// A product page by its slug.
func pageBySlug(ctx context.Context, byID *cache.Cache[int64, Product], bySlug *cache.Cache[string, int64], slug string) (Product, error) {
	id, err := bySlug.Get(ctx, slug)
	if err != nil {
		return Product{}, err
	}
	p, err := byID.Get(ctx, id)
	if errors.Is(err, cache.ErrNotFound) || err == nil && p.Slug != slug { // the memory of this process may be old
		fresh := cache.Reads{SkipLocal: true}
		if id, err = bySlug.With(fresh).Get(ctx, slug); err != nil {
			return Product{}, err
		}
		p, err = byID.With(fresh).Get(ctx, id)
	}
	if err == nil && p.Slug != slug {
		return Product{}, cache.ErrNotFound // the product has another slug by now
	}
	return p, err
}

// The status of an error.
func _(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, cache.ErrNotFound):
		http.Error(w, "no such product", http.StatusNotFound)
	case errors.Is(err, cache.ErrOverloaded):
		http.Error(w, "try again", http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, "something is wrong", http.StatusInternalServerError)
	}
}

// A list, by one query.
func _(ctx context.Context, products *cache.Cache[int64, Product], ids []int64) ([]Product, error) {
	found, err := products.GetMany(ctx, ids) // err is a *cache.BatchError[int64]; found has what there is all the same
	page := make([]Product, 0, len(ids))
	for _, id := range ids { // a map has no order
		if p, ok := found[id]; ok {
			page = append(page, p)
		}
	}
	return page, err
}

// The config of a service.
type config struct{ Banner string }

// A value that is refreshed in the background.
func _(ctx context.Context, rdb redis.UniversalClient, load func(context.Context) (config, error)) (config, error) {
	configs, err := cache.New(rdb, func(ctx context.Context, _ string) (config, error) { return load(ctx) },
		cache.Options{Name: "config", TTL: 30 * time.Second, EarlyRefresh: 2})
	if err != nil {
		return config{}, err
	}
	return configs.Get(ctx, "current")
}

// A limited API as the source.
func _(rdb redis.UniversalClient, limiter interface{ Wait(context.Context) error }, api interface {
	Geocode(ctx context.Context, address string) (Place, error)
}) error {
	guard, err := breaker.New(breaker.Options{Name: "geo", MaxConcurrent: 4, Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	places, err := cache.New(rdb, func(ctx context.Context, address string) (Place, error) {
		if err := limiter.Wait(ctx); err != nil { // of this process; the wait counts as time of the load
			return Place{}, err
		}
		return api.Geocode(ctx, address)
	}, cache.Options{Name: "geo", TTL: 24 * time.Hour, Breaker: guard, Rebuild: mutexrebuild.Options{ErrorHold: 4 * time.Second}})
	_ = places
	return err
}

// A Place is what a geocoder finds.
type Place struct{ Lat, Lon float64 }

// Tenants.
func _(ctx context.Context, rdb redis.UniversalClient, load func(context.Context, key) (Product, error)) error {
	products, err := cache.NewFrom(rdb, cache.Source[key, Product]{
		Load: load, // reads by key.Tenant, not by a tenant of ctx
		Tags: func(k key, _ Product) []string { return []string{"tenant:" + k.Tenant} },
	}, cache.Options{Name: "product"})
	if err != nil {
		return err
	}
	return products.ClearTags(ctx, "tenant:acme") // one command, in all processes
}

type key struct { // its id is acme/42
	Tenant string
	ID     int64
}

// A lagging replica.
func _(rdb redis.UniversalClient, replica Store) error {
	products, err := cache.New(rdb, replica.Product, cache.Options{Name: "product", ReplicaLag: 2 * time.Second})
	_ = products
	return err
}

// A job that runs once.
func _(ctx context.Context, locker *lock.Locker, day time.Time, report func(context.Context) error) error {
	ran, err := locker.Once(ctx, "report:"+day.Format(time.DateOnly), 25*time.Hour, report)
	fmt.Println(ran) // true in one process of the fleet
	return err
}

// docs/results.md, the steps.
func _(rdb redis.UniversalClient, store Store, exists cache.Filter, db *breaker.Breaker) error {
	products, err := cache.New(rdb, store.Product, cache.Options{ // + levee: flight and lease, with nothing to switch on
		Name:                 "product",
		NullTTL:              30 * time.Second,                       // + null values; the default
		Filter:               exists,                                 // + filter: a *bloom.Filter
		StaleWhileRevalidate: 30 * time.Second,                       // + stale-while-revalidate; the default
		Local:                localcache.Options{MaxBytes: 64 << 20}, // + local tier; the default
		Breaker:              db,                                     // + limit and breaker: breaker.Options{MaxConcurrent: 16}
	})
	_ = products
	return err
}
