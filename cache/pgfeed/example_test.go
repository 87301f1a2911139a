package pgfeed_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/pgfeed"
)

func Example() {
	source, err := pgfeed.New(pgfeed.Options{
		Name: "shop",
		URL:  "postgres://levee:secret@db/shop",
		Tables: []pgfeed.Table{
			{Name: "public.product", Columns: []string{"id", "slug"}}, // cached under both
			{Name: "public.category"},                                 // by its primary key
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(source.Name())
	// Output: shop
}

// What to alarm on: a slot that nobody reads keeps the log of the database.
func ExampleFeed_Stats() {
	alarm := func(ctx context.Context, source *pgfeed.Feed) (bool, error) {
		s, err := source.Stats(ctx)
		return !s.Active || s.Retained > 1<<30, err
	}
	_ = alarm
}

// Product is a row.
type Product struct {
	ID   int64
	Slug string
}

// A row that is cached by its id and by its slug: a changed slug drops the old one and the
// new one. Every process calls Follow, on a goroutine of its own.
func ExampleFeed() {
	follow := func(ctx context.Context, source feed.Feed, products *cache.Cache[int64, Product], bySlug *cache.Cache[string, Product]) error {
		slugs := func(row feed.Row) ([]string, error) {
			if slug, ok := row["slug"]; ok && slug == nil {
				return nil, nil // NULL: no page has it
			}
			slug, err := row.Text("slug")
			return []string{slug}, err
		}
		return cache.Follow(ctx, source, products.Route("public.product", nil), bySlug.Route("public.product", slugs))
	}
	_ = follow
}

// A region: the feed, and with it the slot, is the region's own, and so is the Redis of the cache. The loader may read
// the region's standby.
func ExampleNew_region() {
	options := cache.Options{
		Name:       "product",
		TTL:        5 * time.Minute, // bounds what is served while the region is cut off
		ReplicaLag: 5 * time.Second, // more than the region's standby lags behind the primary
	}
	follow := func(ctx context.Context, region string, products *cache.Cache[int64, Product]) error {
		changes, err := pgfeed.New(pgfeed.Options{
			Name:   "shop_" + region,                       // and so the slot "levee_shop_eu"
			URL:    "postgres://levee:secret@primary/shop", // the primary, from every region
			Tables: []pgfeed.Table{{Name: "public.product"}},
		})
		if err != nil {
			return err
		}
		return products.Follow(ctx, changes)
	}
	_, _ = options, follow
}

// The Audit of a cache beside its feed: it finds what no feed has told.
func ExampleFeed_audit() {
	find := func(ctx context.Context, products *cache.Cache[int64, Product]) error {
		return audit.Run(ctx, products, audit.Options[int64, Product]{
			Rate: 20, // keys a second
			Heal: true,
			Stale: func(v audit.StaleValue[int64, Product]) {
				slog.Error("nobody invalidated it", "product", v.Key, "age", v.Age)
			},
		})
	}
	_ = find
}

// A Ledger beside a cache: how many of the changes does the cache still not show, and after how long?
func ExampleFeed_ledger() {
	var store interface {
		Product(ctx context.Context, id int64) (Product, error)
	}
	begin := func(products *cache.Cache[int64, Product]) error {
		source, err := pgfeed.New(pgfeed.Options{
			Name: "ledger-0", URL: "postgres://levee:secret@db/shop", // a name of its own, and so a slot
			Tables: []pgfeed.Table{{Name: "public.product"}},
		})
		if err != nil {
			return err
		}
		ledger, err := audit.NewLedger(products, store.Product, audit.LedgerOptions[int64, Product]{Feed: source, Share: 0.1})
		if err != nil {
			return err
		}
		defer ledger.Close() // before the cache
		return nil
	}
	_ = begin
}
