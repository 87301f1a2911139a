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
	products, err := cache.New(rdb, store.Product, cache.Options{ // store.Product: func(ctx, int64) (Product, error)
		Name: "product",
		TTL:  10 * time.Minute,
	})
	if err != nil {
		return err
	}
	defer products.Close()

	p, err := products.Get(ctx, 42) // errors.Is(err, cache.ErrNotFound)
	err = products.Write(ctx, []int64{42}, func(ctx context.Context) error { return store.Rename(ctx, 42, "new") })
	seen(p, products)
	return err
}

func write(ctx context.Context, products products, store store) (err error) {
	err = products.Write(ctx, []int64{42}, func(ctx context.Context) error { return store.Rename(ctx, 42, "new") })
	if err = cache.Committed(err); err != nil { // nil for ErrNotInvalidated: committed; levee logs it and retries the invalidation
		return err
	}
	err = products.Invalidate(ctx, 42)        // or, after a commit elsewhere: this key; works even if ctx has ended
	err = products.Clear(ctx)                 // or all keys, in all processes, by one command
	err = products.ClearTags(ctx, "tenant:7") // or all with a tag that Source.Tags gives: one command too
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
	go func() { // scans once a day, in one process for all; the first scan begins after some 5 s, and every key passes until it has ended
		err := products.KeepFilter(ctx, 24*time.Hour, store.Keys) // store.Keys: func(context.Context) iter.Seq2[int64, error], all keys
		slog.Info("the filter is kept no longer", "error", err)
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
