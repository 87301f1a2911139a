package localcache_test

import (
	"fmt"
	"log"

	"github.com/levee-go/levee/localcache"
)

func Example() {
	names, err := localcache.New[int64, string](localcache.Options{MaxBytes: 16 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	rows := map[int64]string{42: "lamp"} // the database
	name := func(id int64) (string, error) {
		if v, ok := names.Get(id); ok {
			return v, nil
		}
		return names.Fill(id, func() (string, int, error) { return rows[id], len(rows[id]), nil })
	}
	fmt.Println(name(42))

	rows[42] = "desk lamp"
	names.Delete(42) // after the write
	fmt.Println(name(42))
	// Output:
	// lamp <nil>
	// desk lamp <nil>
}

// Fifty caches may take 64 MiB each, or 256 MiB together.
func ExampleBudget() {
	shared := &localcache.Budget{MaxBytes: 256 << 20}
	names, err := localcache.New[int64, string](localcache.Options{Budget: shared})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()
	prices, err := localcache.New[int64, int](localcache.Options{Budget: shared})
	if err != nil {
		log.Fatal(err)
	}
	defer prices.Close()
	prices.Set(42, 999, 8)
	fmt.Println(prices.Get(42))
	// Output: 999 true
}
