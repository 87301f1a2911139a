// Scraper lets a scraper loose on a small product catalogue: it asks for ids that do not exist, each of them once, while honest users ask
// for what does. It measures what that does to the database, to Redis, to the memory and to the users, with one protection after the other.
//
//	go run ./scraper
//
// It needs no server: it embeds a Redis, and makes a SQLite catalogue of 100,000 products on the spot, which it slows down to the pace of a
// loaded database. Against real servers:
//
//	go run ./scraper -redis 127.0.0.1:6379 -postgres postgres://user@127.0.0.1/shop
//
// On these it works only under a key prefix and in a schema of its own, and removes both at the end.
//
// To read it as a lesson: catalogue.go is the database, shop.go the service in front of it, ways.go what keeps the scraper from the
// database, attack.go what the users do, process.go what the scraper does, run.go what is measured.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/levee-go/levee/examples/internal/console"
	"github.com/levee-go/levee/examples/internal/servers"
	"github.com/redis/go-redis/v9"
)

func main() {
	scraperMain()
	redis.SetLogger(servers.Silence{}) // what fails stands in the table; a log would run into the live line
	debug.SetGCPercent(400)            // the embedded Redis makes garbage as fast as it works; its collection should not be what is measured
	console.Main(run)
}

// run is main with its surroundings as arguments. It returns 2 for a mistake in the flags and 1 for any other failure.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return console.Run(ctx, "scraper", args, stderr, parse, func(s settings) error {
		_, err := s.runs(ctx, &report{out: stdout, progress: stderr, markdown: s.markdown, began: time.Now()})
		return err
	})
}

// settings are what the flags say.
type settings struct {
	redis, postgres string
	rows            int
	seed            uint64
	markdown        bool
	size            scale
}

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{size: fullScale}
	flags := flag.NewFlagSet("scraper", flag.ContinueOnError)
	flags.StringVar(&s.redis, "redis", "", "use the Redis at this `address` (host:port or redis:// URL) instead of an embedded one")
	flags.StringVar(&s.postgres, "postgres", "", "use the PostgreSQL database of this `DSN` instead of SQLite")
	flags.IntVar(&s.rows, "rows", 100_000, "products in the catalogue, from 1,000 to 10,000,000")
	flags.Uint64Var(&s.seed, "seed", 1, "seed of the random choices")
	flags.BoolVar(&s.markdown, "markdown", false, "print the table as Markdown")
	err := console.Parse(flags, args, "Scraper attacks a product catalogue with ids that do not exist, and measures what each protection is worth.", stderr)
	switch {
	case err != nil:
		return s, err
	case s.rows < 1000 || s.rows > 10_000_000:
		return s, fmt.Errorf("-rows must be from 1,000 to 10,000,000, not %d", s.rows)
	}
	return s, nil
}
