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
	rdb, end := connect()
	defer end()

	pages, err := mutexrebuild.New(rdb, mutexrebuild.Keyspace{Name: "page"}, mutexrebuild.Options{})
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

// A writer keeps its key closed: whoever loads meanwhile does not publish what may be old.
func ExampleGroup_Hold() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	pages, err := mutexrebuild.New(rdb, mutexrebuild.Keyspace{Name: "page"}, mutexrebuild.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()

	release, err := pages.Hold(ctx, "index")
	if err != nil {
		log.Fatal(err) // Redis does not answer: the change may go on all the same
	}
	render := func(text string) mutexrebuild.Load {
		return func(context.Context) ([]byte, time.Duration, error) { return []byte(text), time.Minute, nil }
	}
	page, _ := pages.Rebuild(ctx, "index", render("<old>"))
	fmt.Println(string(page))
	// … the row changes here
	fmt.Println(release(ctx)) // invalidates
	page, _ = pages.Rebuild(ctx, "index", render("<new>"))
	fmt.Println(string(page))
	// Output:
	// <old>
	// <nil>
	// <new>
}

// connect starts a Redis in this process. A program has its own.
func connect() (rdb *redis.Client, end func()) {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		server.Close()
	}
}
