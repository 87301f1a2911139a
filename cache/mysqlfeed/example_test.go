package mysqlfeed_test

import (
	"fmt"

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
