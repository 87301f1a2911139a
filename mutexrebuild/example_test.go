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

// A value is loaded once, found by everybody, and loaded again after an invalidation.
func ExampleGroup_Rebuild() {
	ctx := context.Background()
	server, err := miniredis.Run() // a program has its own Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	pages, err := mutexrebuild.New(rdb, mutexrebuild.Keyspace{Name: "page"}, mutexrebuild.Options{}, mutexrebuild.Messages{})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()

	render := func(context.Context) ([]byte, time.Duration, error) {
		fmt.Println("rendering")
		return []byte("<html>"), time.Minute, nil
	}
	for range 2 {
		page, err := pages.Rebuild(ctx, "index", render)
		fmt.Println(string(page), err)
	}
	fmt.Println(pages.Invalidate(ctx, "index"))
	page, err := pages.Rebuild(ctx, "index", render)
	fmt.Println(string(page), err)
	// Output:
	// rendering
	// <html> <nil>
	// <html> <nil>
	// <nil>
	// rendering
	// <html> <nil>
}
