// Shadow shows how a service finds out what a cache would do for it, before the cache answers one read. A product service reads through
// an audit.Shadow: every answer comes from the database. Two programs change prices: the service itself, which writes through the cache,
// and an import that has never heard of it. After a few seconds the numbers say how many reads the cache would have answered, and the
// Shadow names the products whose old price it would have shown.
//
//	go run ./shadow
//
// It needs no server: it embeds a Redis, and its database is a map. With a real Redis, in which it works only under a key prefix that it
// removes at the end:
//
//	go run ./shadow -redis 127.0.0.1:6379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/examples/internal/console"
	"github.com/levee-go/levee/examples/internal/servers"
)

func main() {
	redis.SetLogger(servers.Silence{})
	console.Main(run)
}

// run is main with its surroundings as arguments. It returns 2 for a mistake in the flags and 1 for any other failure.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return console.Run(ctx, "shadow", args, stderr, parse, func(s settings) error {
		_, err := s.play(ctx, stdout)
		return err
	})
}

// settings are what the flags say, and how long it all takes.
type settings struct {
	redis  string
	length time.Duration // of the traffic, which ends before when all that the import has changed is named
	share  float64       // see audit.ShadowOptions
	settle time.Duration // the same
}

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{length: 15 * time.Second, share: 1, settle: 2 * time.Second}
	flags := flag.NewFlagSet("shadow", flag.ContinueOnError)
	flags.StringVar(&s.redis, "redis", "", "use the Redis at this `address` (host:port or redis:// URL) instead of an embedded one")
	err := console.Parse(flags, args, "Shadow shows what a cache would have answered, before it answers anybody.", stderr)
	return s, err
}

const (
	products = 500
	readers  = 8
	pause    = 4 * time.Millisecond // of a reader between two reads
	imports  = 7                    // prices that the import changes
)

// play runs the service and returns what the Shadow has counted, and the products that it names.
func (s settings) play(ctx context.Context, out io.Writer) (result, error) {
	server, err := servers.OpenRedis(ctx, s.redis, "levee-shadow")
	if err != nil {
		return result{}, err
	}
	defer server.Close()
	rdb := server.Client()
	defer rdb.Close()

	db := newShop()
	shop, err := cache.New(rdb, db.load, cache.Options{
		Name: server.Prefix + "-product", TTL: time.Minute, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return result{}, err
	}
	defer shop.Close()

	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var mu sync.Mutex
	var named result
	shadow, err := audit.NewShadow(shop, db.load, audit.ShadowOptions[int64, Product]{
		Share:  s.share,
		Settle: s.settle,
		Differs: func(v audit.StaleValue[int64, Product]) {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(named.products, v.Key) {
				named.products = append(named.products, v.Key)
				fmt.Fprintf(out, "product %3d: the cache has %d cents, the database %d: nobody has invalidated it\n", v.Key, v.Cached.Cents, v.Source.Cents)
			}
			if len(named.products) == imports {
				end(errNamed)
			}
		},
	})
	if err != nil {
		return result{}, err
	}
	defer shadow.Close()

	fmt.Fprintf(out, "%d products, %d readers; every answer comes from the database (%s holds the cache).\n\n", products, readers, server.Name)
	if err := s.traffic(ctx, shop, shadow, db); err != nil {
		return result{}, err
	}
	shadow.Close()
	named.stats = shop.Stats().Shadow
	n := named.stats
	fmt.Fprintf(out, "\nOf %s reads that were compared, the cache would have answered %.1f %% without the database.\n",
		console.Count(int64(n.Local+n.Redis+n.Null+n.Filter+n.Loaded)), 100*n.HitRatio())
	fmt.Fprintf(out, "equal %s, changed just then %d, wrong %d.\n", console.Count(int64(n.Equal)), n.Raced, n.Differs)
	if n.Differs > 0 {
		fmt.Fprintln(out, "Somebody writes prices and does not invalidate: have that program call Invalidate, or follow a feed of the database.")
	}
	return named, nil
}

// errNamed ends the traffic.
var errNamed = errors.New("all are named")

// A result is what the Shadow has found.
type result struct {
	stats    cache.ShadowStats
	products []int64
}

// traffic reads and writes until it is over, and gives the Shadow the time to look at everything twice.
func (s settings) traffic(ctx context.Context, shop *cache.Cache[int64, Product], shadow *audit.Shadow[int64, Product], db *shop) error {
	ctx, cancel := context.WithTimeout(ctx, s.length)
	defer cancel()
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			for servers.Sleep(ctx, pause) == nil {
				_, _ = shadow.Get(ctx, popular()) // the database does not fail
			}
		})
	}
	all.Go(func() { // the service changes a price, and the cache with it
		for servers.Sleep(ctx, 20*time.Millisecond) == nil {
			id := max(popular(), imports) // not what the import changes
			_ = shop.Write(ctx, []int64{id}, func(context.Context) error { db.reprice(id); return nil })
		}
	})
	all.Go(func() { // the import changes the prices of what is read most, every second
		for servers.Sleep(ctx, min(s.length/4, time.Second)) == nil {
			for id := range int64(imports) {
				db.reprice(id)
			}
		}
	})
	all.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) && !errors.Is(cause, errNamed) {
		return cause
	}
	return nil
}

// popular picks a product, the first ones most often.
func popular() int64 { return min(int64(rand.ExpFloat64()*products/6), products-1) }
