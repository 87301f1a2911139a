package mutexrebuild_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/mutexrebuild"
)

// A value is built once, found by everybody, and built anew after an invalidation.
func Example() {
	ctx := context.Background()
	server, err := miniredis.Run() // a program has its own Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	format := mutexrebuild.Format[string]{
		Encode: func(_, page string) ([]byte, time.Duration, error) { return []byte(page), time.Minute, nil },
		Decode: func(_ string, data []byte) (string, mutexrebuild.Condition) { return string(data), mutexrebuild.Fresh },
	}
	pages, err := mutexrebuild.New(rdb, "page", format, mutexrebuild.Events{}, mutexrebuild.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()

	render := func(context.Context, bool) (string, error) {
		fmt.Println("rendering")
		return "<html>", nil
	}
	for range 2 {
		page, err := pages.Do(ctx, "index", render)
		fmt.Println(page.Value, page.Origin == mutexrebuild.Found, err)
	}
	fmt.Println(pages.Invalidate(ctx, "index"))
	_, _ = pages.Do(ctx, "index", render)
	// Output:
	// rendering
	// <html> false <nil>
	// <html> true <nil>
	// <nil>
	// rendering
}
