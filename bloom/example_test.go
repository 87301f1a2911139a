package bloom_test

import (
	"context"
	"fmt"

	"github.com/levee-go/levee/bloom"
)

func Example() {
	ctx := context.Background()
	exists, err := bloom.New(bloom.Options{Capacity: 1_000_000})
	if err != nil {
		panic(err)
	}
	defer exists.Close()
	fmt.Println(exists.MayContain(ctx, "product:7")) // it does not know yet

	// All that exist, from the database.
	products := func(yield func(string, error) bool) {
		for _, id := range []string{"product:1", "product:2", "product:3"} {
			if !yield(id, nil) {
				return
			}
		}
	}
	if err := exists.Rebuild(ctx, products); err != nil {
		panic(err)
	}
	fmt.Println(exists.MayContain(ctx, "product:1"), exists.MayContain(ctx, "product:7"))

	// A new row: first the filter, then the commit.
	if err := exists.Add(ctx, "product:7"); err != nil {
		panic(err)
	}
	fmt.Println(exists.MayContain(ctx, "product:7"))
	// Output:
	// true
	// true false
	// true
}
