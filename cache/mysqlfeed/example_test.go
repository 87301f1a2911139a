package mysqlfeed_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/mysqlfeed"
)

func Example() {
	feed, err := mysqlfeed.New(mysqlfeed.Options{
		Name: "shop",
		Addr: "db:3306", User: "levee", Password: "secret",
		Tables: []mysqlfeed.Table{
			{Name: "shop.product", Columns: []string{"id", "slug"}}, // cached under both
			{Name: "shop.category"},                                 // by its primary key
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(feed.Name())
	// Output: shop
}

// Product is a row.
type Product struct {
	ID   int64
	Slug string
}

// A row that is cached by its id and by its slug: a changed slug drops the old one and the new
// one. Every process calls Follow, on a goroutine of its own.
func ExampleFeed() {
	follow := func(ctx context.Context, products *cache.Cache[int64, Product], bySlug *cache.Cache[string, int64]) error {
		source, err := mysqlfeed.New(mysqlfeed.Options{
			Name: "shop",
			Addr: "db:3306", User: "levee", Password: "secret",
			Tables: []mysqlfeed.Table{{Name: "shop.product", Columns: []string{"id", "slug"}}}, // all that the routes read
		})
		if err != nil {
			return err
		}
		if err := source.Check(ctx); err != nil { // what is missing, with the statement that fixes it
			slog.Error("not all tables can be followed", "error", err)
		}
		slugs := func(row feed.Row) ([]string, error) {
			if slug, ok := row["slug"]; ok && slug == nil {
				return nil, nil // NULL: no page has it
			}
			slug, err := row.Text("slug")
			return []string{slug}, err
		}
		return cache.Follow(ctx, source, products.Route("shop.product", nil), bySlug.Route("shop.product", slugs))
	}
	_ = follow
}
