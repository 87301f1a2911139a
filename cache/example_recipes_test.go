package cache_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/localcache"
)

// Tenants: the tenant is a part of the key, and a tag, by which all of its values end at once.
func ExampleCache_ClearTags() {
	type key struct { // its id is acme/42
		Tenant string
		ID     int64
	}
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	products, err := cache.NewFrom(rdb, cache.Source[key, string]{
		Load: func(_ context.Context, k key) (string, error) { // reads by k.Tenant, not by a tenant of its context
			fmt.Println("  a query for", k)
			return "lamp", nil
		},
		Tags: func(k key, _ string) []string { return []string{"tenant:" + k.Tenant} },
	}, cache.Options{Name: "product"})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()
	acme, other := key{"acme", 42}, key{"other", 42}
	_, _ = products.Get(ctx, acme)
	_, _ = products.Get(ctx, other)

	fmt.Println(products.ClearTags(ctx, "tenant:acme"))
	_, _ = products.Get(ctx, other) // still cached
	_, _ = products.Get(ctx, acme)
	// Output:
	//   a query for {acme 42}
	//   a query for {other 42}
	// <nil>
	//   a query for {acme 42}
}

// Permissions: the rights of a viewer under one key, so that revoking one is one Invalidate. No right
// is served past its TTL, whatever is slow or away.
func Example_permissions() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	granted := map[int64][]string{7: {"read", "write"}}
	rights, err := cache.New(rdb, func(_ context.Context, viewer int64) ([]string, error) { return granted[viewer], nil }, cache.Options{
		Name: "rights", TTL: 10 * time.Second,
		StaleWhileRevalidate: cache.Off, StaleIfError: cache.Off,
		Local: localcache.Options{MaxBytes: cache.Off},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer rights.Close()
	fmt.Println(rights.Get(ctx, 7))

	granted[7] = []string{"read"}
	fmt.Println(rights.Invalidate(ctx, 7))
	fmt.Println(rights.Get(ctx, 7))
	// Output:
	// [read write] <nil>
	// <nil>
	// [read] <nil>
}

// A config that every request needs: read often, it is refreshed before its TTL ends, by one process,
// and nobody waits. When its source fails, the last one is served.
func Example_config() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	var down error
	banners, err := cache.New(rdb, func(context.Context, string) (string, error) { return "sale!", down },
		cache.Options{Name: "config", TTL: 30 * time.Second, EarlyRefresh: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer banners.Close()
	fmt.Println(banners.Get(ctx, "current"))

	down = errors.New("the database is away")
	fmt.Println(banners.Expire(ctx, "current")) // as if its TTL had ended
	got, err := banners.Fetch(ctx, "current")
	fmt.Println(got.Value, got.Stale, err)
	// Output:
	// sale! <nil>
	// <nil>
	// sale! true <nil>
}
