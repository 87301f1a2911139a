package pgfeed_test

import (
	"context"
	"fmt"

	"github.com/levee-go/levee/cache/pgfeed"
)

func Example() {
	feed, err := pgfeed.New(pgfeed.Options{
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
	fmt.Println(feed.Name())
	// Output: shop
}

// What to alarm on: a slot that nobody reads keeps the log of the database.
func ExampleFeed_Stats() {
	alarm := func(ctx context.Context, feed *pgfeed.Feed) (bool, error) {
		s, err := feed.Stats(ctx)
		return !s.Active || s.Retained > 1<<30, err
	}
	_ = alarm
}
