package localcache_test

import (
	"fmt"
	"log"
	"time"

	"github.com/levee-go/levee/localcache"
)

func Example() {
	names, err := localcache.New[int64, string](localcache.Options{MaxBytes: 16 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	rows := map[int64]string{42: "lamp"} // the database
	name := func(id int64) string {
		if v, kind := names.Get(id); kind == localcache.Value {
			return *v
		}
		mark := names.Mark(fmt.Sprint(id)) // before the read
		v := rows[id]
		names.Fill(mark, id, v, len(v), time.Minute)
		return v
	}
	fmt.Println(name(42))

	rows[42] = "desk lamp"
	names.Delete("42") // after the write; every process that caches the row does this
	fmt.Println(name(42))
	// Output:
	// lamp
	// desk lamp
}

// A reader was slow: between its read and its Fill the row has changed. The mark tells.
func ExampleCache_Fill() {
	names, err := localcache.New[int64, string](localcache.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	mark := names.Mark("42") // before the read
	old := "lamp"            // what the database said
	names.Delete("42")       // a writer, meanwhile
	fmt.Println(names.Fill(mark, 42, old, len(old), time.Minute))
	_, kind := names.Get(42)
	fmt.Println(kind == localcache.Miss)
	// Output:
	// false
	// true
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
	fmt.Println(prices.Put("42", 42, 999, 8, time.Minute))
	// Output: true
}
