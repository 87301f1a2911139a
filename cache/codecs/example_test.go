package codecs_test

import (
	"context"
	"fmt"
	"log"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/codecs"
)

// Values of 1 KB and more are compressed, then sealed. Each process has the same keys, from
// where secrets are kept.
func Example() {
	today, yesterday := []byte("0123456789abcdef0123456789abcdef"), []byte("fedcba9876543210fedcba9876543210")
	seal, err := codecs.AESGCM(today, yesterday) // the first seals, both open
	if err != nil {
		log.Fatal(err)
	}
	load := func(_ context.Context, id int64) (string, error) { return fmt.Sprint("product ", id), nil }
	products, err := cache.New(nil, load, cache.Options{ // nil: a client of Redis goes here
		Name: "product", Schema: 1, // one higher than without these two
		Codec: codecs.S2(codecs.Msgpack(), 1024),
		Seal:  seal,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()
	fmt.Println(products.Get(context.Background(), 42))
	// Output: product 42 <nil>
}
