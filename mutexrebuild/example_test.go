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

// A writer keeps its key closed: whoever loads meanwhile does not publish what may be old.
func ExampleGroup_Hold() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	pages, err := mutexrebuild.New(rdb, mutexrebuild.Keyspace{Name: "page"}, mutexrebuild.Options{}, mutexrebuild.Messages{})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()

	release, err := pages.Hold(ctx, "index")
	if err != nil {
		log.Fatal(err) // Redis does not answer: the change may go on all the same
	}
	asked := pages.Begin(ctx, mutexrebuild.Ask{ID: "index"})
	fmt.Println(asked[0].Verdict == mutexrebuild.Held)
	// … the row changes here
	fmt.Println(release(ctx)) // invalidates
	asked = pages.Begin(ctx, mutexrebuild.Ask{ID: "index"})
	fmt.Println(asked[0].Verdict == mutexrebuild.Granted)
	pages.Abort(ctx, asked[0].Lease)
	// Output:
	// true
	// <nil>
	// true
}

// The steps of which Rebuild is made, for many ids in one round trip each.
func ExampleGroup_Begin() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	pages, err := mutexrebuild.New(rdb, mutexrebuild.Keyspace{Name: "page"}, mutexrebuild.Options{}, mutexrebuild.Messages{})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()

	var built []mutexrebuild.Publication
	for _, grant := range pages.Begin(ctx, mutexrebuild.Ask{ID: "a"}, mutexrebuild.Ask{ID: "b"}) {
		if grant.Verdict == mutexrebuild.Granted {
			built = append(built, mutexrebuild.Publication{Lease: grant.Lease, Data: []byte("<html>"), TTL: time.Minute})
		}
	}
	_ = pages.Invalidate(ctx, "b") // a writer, before the commit: what was built may be old
	for i, outcome := range pages.Commit(ctx, built...) {
		fmt.Println(built[i].Lease.ID, outcome.Published, outcome.Err)
	}
	// Output:
	// a true <nil>
	// b false <nil>
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
