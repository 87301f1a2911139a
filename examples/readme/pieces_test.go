// Package readme runs the Go of README.md as it stands there, against a PostgreSQL and two redis-servers: one that evicts, for the cache, and
// one that does not, for the lock and the filter.
package readme

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/lock"
)

// Each function is the surroundings of one piece: its parameters are what the page takes for granted, and seen hands what the piece has made
// to the test. TestEveryPieceOfREADMEIsRun holds the two together.

type products = *cache.Cache[int64, Product]

func tenLines(ctx context.Context, rdb redis.UniversalClient, store store, seen func(Product, products)) error {
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product", TTL: 10 * time.Minute}) // store.Product: func(ctx, int64) (Product, error)
	if err != nil {
		return err
	}
	defer products.Close()

	p, err := products.Get(ctx, 42)
	if err != nil { // errors.Is(err, cache.ErrNotFound): there is no such row
		return err
	}
	err = products.Write(ctx, []int64{42}, func(ctx context.Context) error { return store.Rename(ctx, 42, "new") })
	err = cache.Committed(err) // nil also for ErrNotInvalidated: the row is committed, and levee logs and repeats the invalidation
	seen(p, products)
	return err
}

func keepScrapersOut(ctx context.Context, rdb, noEvict redis.UniversalClient, store store, seen func(products)) error {
	exists, err := bloom.Open(ctx, noEvict, bloom.Options{Name: "product", Capacity: 10_000_000})
	if err != nil {
		return err
	}
	defer exists.Close()
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product", Filter: exists})
	if err != nil {
		return err
	}
	defer products.Close()
	go func() { // scans once a day, in one process for all; every key passes until the first scan has ended. store.Keys: func(context.Context) iter.Seq2[int64, error]
		slog.Info("the filter is kept no longer", "error", products.KeepFilter(ctx, 24*time.Hour, store.Keys))
	}()
	seen(products)
	return nil
}

func lockOut(ctx context.Context, noEvict redis.UniversalClient, claim func(ctx context.Context, fence int64) error) error {
	locker, err := lock.New(noEvict, lock.Options{})
	if err != nil {
		return err
	}
	defer locker.Close()
	err = locker.Do(ctx, "coupon:66", func(ctx context.Context, lease *lock.Lease) error {
		return claim(ctx, lease.Fence()) // UPDATE … SET fence = $1 WHERE … AND fence <= $1
	})
	return err
}
