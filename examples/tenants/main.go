// Tenants keeps the products of a thousand tenants in one cache, clears those of one tenant, and counts what has
// to be loaded again.
//
//	go run ./tenants
//	go run ./tenants -redis 127.0.0.1:6379
//
// Without -redis it embeds one. Keys begin with levee:c1:{tenants.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
)

// A Key is a product of a tenant. The tenant is part of it: what depends on the tenant must not be found by the id alone.
type Key struct{ Tenant, Product int }

// open makes the cache of a process, whose source counts its loads.
func open(rdb redis.UniversalClient, loads *atomic.Int64) (*cache.Cache[Key, string], error) {
	return cache.NewFrom(rdb, cache.Source[Key, string]{
		LoadMany: func(_ context.Context, keys []Key) (map[Key]string, error) {
			found := map[Key]string{}
			for _, k := range keys {
				found[k] = fmt.Sprintf("product %d of tenant %d", k.Product, k.Tenant)
			}
			loads.Add(int64(len(keys)))
			return found, nil
		},
		Key:  func(k Key) string { return fmt.Sprintf("%d/%d", k.Tenant, k.Product) },
		Tags: func(k Key, _ string) []string { return []string{tenant(k.Tenant)} },
	}, cache.Options{Name: "tenants", RedisTimeout: 5 * time.Second}) // the page below is large
}

func tenant(n int) string { return fmt.Sprint("tenant:", n) }

func main() {
	addr := flag.String("redis", "", "address of a Redis; none: one in this process")
	tenants := flag.Int("tenants", 1000, "how many tenants")
	products := flag.Int("products", 20, "how many products each has")
	flag.Parse()
	if *addr == "" {
		s, err := miniredis.Run()
		if err != nil {
			log.Fatal(err)
		}
		defer s.Close()
		*addr = s.Addr()
	}
	if err := run(context.Background(), os.Stdout, *addr, *tenants, *products); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, addr string, tenants, products int) error {
	var loads atomic.Int64
	var processes []*cache.Cache[Key, string]
	for range 2 { // two processes would do the same
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		c, err := open(rdb, &loads)
		if err != nil {
			return err
		}
		defer c.Close()
		processes = append(processes, c)
	}
	var all []Key
	for t := range tenants {
		for p := range products {
			all = append(all, Key{t, p})
		}
	}
	read := func(what string, c *cache.Cache[Key, string]) error {
		before := loads.Load()
		if _, err := c.GetMany(ctx, all); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %d products read, %d of them loaded\n", what, len(all), loads.Load()-before)
		return nil
	}
	first, second := processes[0], processes[1]
	if err := read("first process", first); err != nil {
		return err
	}
	if err := read("second process", second); err != nil {
		return err
	}
	began := time.Now()
	if err := first.ClearTags(ctx, tenant(7)); err != nil {
		return err
	}
	fmt.Fprintf(out, "tenant 7 cleared in %v, by one command\n", time.Since(began).Round(10*time.Microsecond))
	if err := read("first process", first); err != nil {
		return err
	}
	return read("second process", second) // by now the message has come, and the first one has loaded
}
