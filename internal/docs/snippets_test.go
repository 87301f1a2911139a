package docs

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/cache/cacheadmin"
	"github.com/levee-go/levee/cache/cachedebug"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/lock"
)

// What the pages show in pieces is compiled here and not run; the Examples of the packages run the same calls, and
// examples/readme runs those of README. Each
// function is the surroundings of its pieces: its parameters are what the page takes for granted.

// A Product is a row.
type Product struct {
	ID   int64
	Name string
	Slug string
}

// A Store is the database of the pages.
type Store interface {
	Product(ctx context.Context, id int64) (Product, error)
	Rename(ctx context.Context, id int64, name string) error
	Keys(ctx context.Context) iter.Seq2[int64, error]
}

// docs/locks.md, a client of its own.
func _(noEvict redis.UniversalClient) error {
	locker, err := lock.New(noEvict, lock.Options{}) // noEvict: your client of a Redis with maxmemory-policy noeviction
	if err != nil {
		return err
	}
	defer locker.Close()
	return nil
}

// docs/locks.md, without Redis.
func _() (*lock.Locker, error) {
	var rdb redis.UniversalClient // nil: the locks are in this process
	if addr := os.Getenv("REDIS_ADDR"); addr != "" {
		rdb = redis.NewClient(&redis.Options{Addr: addr})
	}
	locker, err := lock.New(rdb, lock.Options{})
	return locker, err
}

// docs/adopting.md, the Shadow.
func _(ctx context.Context, rdb redis.UniversalClient, store Store) error {
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product", TTL: 10 * time.Minute})
	if err != nil {
		return err
	}
	shadow, err := audit.NewShadow(products, store.Product, audit.ShadowOptions[int64, Product]{
		Share: 0.1, // of the keys
		Differs: func(v audit.StaleValue[int64, Product]) {
			slog.Error("the cache would have been wrong", "product", v.Key, "cached", v.Cached, "source", v.Source, "age", v.Age)
		},
	})
	if err != nil {
		return err
	}
	defer shadow.Close()

	product, err := shadow.Get(ctx, 42) // in place of store.Product(ctx, 42)
	if err != nil {
		return err
	}
	_ = product
	return nil
}

// docs/recipes.md, hot product.
func _(ctx context.Context, rdb redis.UniversalClient, store Store) error {
	products, err := cache.New(rdb, store.Product, cache.Options{
		Name: "product", TTL: 10 * time.Minute,
		Local: localcache.Options{HotKeys: 100}, // counts keys for TopKeys and the debug page
	})
	if err != nil {
		return err
	}
	p, err := products.Get(ctx, 42) // one load for all callers in all processes
	_ = p
	return err
}

// docs/recipes.md, negative caching.
func _(rdb redis.UniversalClient, load cache.Loader[int64, Product], errNoRecord error) error {
	products, err := cache.New(rdb, load, cache.Options{
		Name: "product", NullTTL: time.Minute,
		IsNotFound: func(err error) bool { return errors.Is(err, errNoRecord) }, // gorm.ErrRecordNotFound, for example
	})
	_ = products
	return err
}

// A Category is a page made of other cached values.
type Category struct {
	ID       int64
	Products map[int64]Product
}

// docs/recipes.md, a page made of other cached values.
func _(rdb redis.UniversalClient, products *cache.Cache[int64, Product], database *breaker.Breaker, store interface {
	ProductIDs(ctx context.Context, category int64) ([]int64, error)
}) error {
	categories, err := cache.New(rdb, func(ctx context.Context, id int64) (Category, error) {
		ids, err := store.ProductIDs(ctx, id)
		if err != nil {
			return Category{}, err
		}
		found, err := products.GetMany(ctx, ids) // with the loader's own context
		if err != nil {
			return Category{}, err
		}
		return Category{id, found}, nil
	}, cache.Options{Name: "category", Breaker: database}) // that of products
	_ = categories
	return err
}

// docs/recipes.md, permissions.
func _(rdb redis.UniversalClient, store interface {
	Rights(ctx context.Context, viewer int64) ([]string, error)
}) error {
	rights, err := cache.New(rdb, store.Rights, cache.Options{ // store.Rights: func(ctx, viewer int64) ([]string, error)
		Name: "rights", TTL: 10 * time.Second,
		StaleWhileRevalidate: cache.Off, StaleIfError: cache.Off, // nothing is served past its TTL, whatever is slow or away
		Local: localcache.Options{MaxBytes: cache.Off}, // nor from memory that missed the Invalidate; costs a round trip a read
	})
	_ = rights
	return err
}

// docs/scale.md, cold start.
func _(ctx context.Context, products *cache.Cache[int64, Product], bestsellers iter.Seq[int64], report func(done, failed int)) error {
	err := products.Warm(ctx, bestsellers, cache.WarmOptions{Rate: 2000, Progress: report}) // an iter.Seq of keys
	return err
}

// docs/operations.md, start.
func _(ctx context.Context, products *cache.Cache[int64, Product]) {
	if err := products.Check(ctx); err != nil { // lock.Locker and bloom.Filter have a Check too
		slog.Error("the cache cannot keep all of its promises", "error", err) // and go on: Gets read the database
	}
}

// docs/operations.md, settings of go-redis.
func _(addr string, addrs []string, myLogger interface {
	Printf(ctx context.Context, format string, v ...any)
}) []redis.UniversalClient {
	rdb := redis.NewClient(&redis.Options{
		Addr:                  addr,
		ContextTimeoutEnabled: true,
		ReadTimeout:           500 * time.Millisecond,
		DialTimeout:           time.Second,
		DialerRetries:         1,
		MaxRetries:            1,
		PoolSize:              32, // fewer than 5 are logged
	})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                 addrs,
		ContextTimeoutEnabled: true,
		ReadTimeout:           500 * time.Millisecond,
	})
	redis.SetLogger(myLogger) // go-redis logs each failed dial to stderr by itself
	return []redis.UniversalClient{rdb, cluster}
}

// docs/operations.md, a look inside.
func _(products *cache.Cache[int64, Product], bySlug *cache.Cache[string, int64]) http.Handler {
	debug := http.NewServeMux() // of a port that only operators reach: the page shows names of keys
	debug.Handle("/debug/levee", cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{products, bySlug}}))
	return debug
}

// docs/operations.md, acting on a cache.
func _(mux *http.ServeMux, products *cache.Cache[int64, Product], bySlug *cache.Cache[string, int64], store Store) error {
	admin, err := cacheadmin.New(cacheadmin.Options{
		Caches: []cacheadmin.Cache{cacheadmin.WithScan(products, store.Keys), bySlug}, // store.Keys is that of KeepFilter
		// Or a function that returns the name of the operator whom your login knows.
		Allow: cacheadmin.AllowToken(os.Getenv("ADMIN_TOKEN")),
	})
	if err != nil {
		return err
	}
	mux.Handle("/admin/levee", admin) // of a port that only operators reach
	return nil
}

// docs/consistency.md, the call.
func _(ctx context.Context, products *cache.Cache[int64, Product], store Store) error {
	err := products.Write(ctx, []int64{42}, func(ctx context.Context) error { return store.Rename(ctx, 42, "new") })
	switch {
	case errors.Is(err, cache.ErrNotInvalidated): // committed, and not yet everywhere: levee goes on trying
		slog.Warn("other processes may show the old name for a while", "error", err)
	case err != nil: // the transaction's own error, or nothing has run
		return err
	}
	return nil
}

// docs/consistency.md, several caches.
func _(ctx context.Context, products *cache.Cache[int64, Product], bySlug *cache.Cache[string, int64], tx func(context.Context) error) error {
	err := cache.Write(ctx, tx, products.Changes(42), bySlug.Changes("old-slug", "new-slug"))
	return err
}

// docs/outages.md.
func _(rdb redis.UniversalClient, store Store) error {
	db, err := breaker.New(breaker.Options{Name: "catalog", MaxConcurrent: 16}) // 16 queries at a time from this process
	if err != nil {
		return err
	}
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product", Breaker: db})
	_ = products
	return err
}

// docs/scale.md.
func _() error {
	db, err := breaker.New(breaker.Options{Name: "catalog", MinConcurrent: 2, MaxConcurrent: 24}) // 4 processes, 100 connections
	_ = db
	return err
}

// docs/filter.md.
func _(ctx context.Context, rdb, noEvict redis.UniversalClient, store Store) error {
	exists, err := bloom.Open(ctx, noEvict, bloom.Options{Name: "product", Capacity: 10_000_000}) // noEvict nil: in this process alone, as bloom.New
	if err != nil {
		return err
	}
	defer exists.Close()
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product", Filter: exists})
	if err != nil {
		return err
	}
	defer products.Close()
	go func() { // in every process: one of them scans when the filter is new or lost, and then once a day
		err := products.KeepFilter(ctx, 24*time.Hour, store.Keys) // store.Keys: func(context.Context) iter.Seq2[int64, error]
		slog.Info("the filter is kept no longer", "error", err)
	}()
	return nil
}

// docs/filter.md, keys.
func _(ctx context.Context, db *sql.DB) iter.Seq2[int64, error] {
	keys := func(yield func(int64, error) bool) {
		rows, err := db.QueryContext(ctx, "SELECT id FROM product")
		if err != nil {
			yield(0, err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			if err := rows.Scan(&id); !yield(id, err) || err != nil {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(0, err) // or a scan that broke off would look like the whole
		}
	}
	return keys
}

// docs/migrating.md, ours.
func _(ctx context.Context, rdb redis.UniversalClient, store Store) error {
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product", TTL: 10 * time.Minute}) // once, at the start
	if err != nil {
		return err
	}
	p, err := products.Get(ctx, 42)
	if err != nil {
		return err
	}
	err = products.Write(ctx, []int64{42}, func(ctx context.Context) error { return store.Rename(ctx, 42, "new") })
	_ = p
	return err
}

// docs/recipes.md, a list by one query.
func _(ctx context.Context, rdb redis.UniversalClient, load func(ctx context.Context, ids []int64) (map[int64]Product, error), ids []int64) error {
	products, err := cache.NewFrom(rdb, cache.Source[int64, Product]{LoadMany: load}, cache.Options{Name: "product"})
	if err != nil {
		return err
	}
	page, err := products.GetMany(ctx, ids) // map[int64]Product; without an error an absent key does not exist
	_ = page
	return err
}

// docs/migrating.md, deployment.
func _(ctx context.Context, rdb redis.UniversalClient, products *cache.Cache[int64, Product], store Store) error {
	err := products.Write(ctx, []int64{42}, func(ctx context.Context) error { return store.Rename(ctx, 42, "new") })
	if old := rdb.Del(context.WithoutCancel(ctx), "product:42").Err(); old != nil { // until nobody reads the old cache any more
		slog.Warn("the old cache may show the old name until its TTL", "error", old)
	}
	if errors.Is(err, cache.ErrNotInvalidated) { // committed, and levee goes on trying
		slog.Warn("other processes may show the old name for a while", "error", err)
		err = nil
	}
	return err
}
