// Drill shows what the three floods do to a database behind a plain cache-aside, and what is left of them behind levee.
//
//	go run ./drill
//
// It needs no server: it embeds a Redis, and makes a SQLite catalogue of 100,000 products on the spot, which it slows down to the pace of a
// loaded database. Against real servers:
//
//	go run ./drill -redis 127.0.0.1:6379 -postgres postgres://user@127.0.0.1/shop
//
// On these it works only under a key prefix and in a schema of its own, and removes both at the end.
//
// With -html FILE it also writes a page of charts: each flood over time, through the plain cache and through levee.
//
// To read it as a lesson: catalogue.go is the database, plain.go the cache that everybody writes, protected.go what levee adds to it,
// floods.go what happens to both.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/examples/internal/console"
	"github.com/levee-go/levee/examples/internal/servers"
)

func main() {
	redis.SetLogger(servers.Silence{}) // what fails stands in the table; a log would run into the live line
	debug.SetGCPercent(400)            // the embedded Redis makes garbage as fast as it works; its collection should not be what is measured
	console.Main(run)
}

// run is main with its surroundings as arguments. It returns 2 for a mistake in the flags and 1 for any other failure.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return console.Run(ctx, "drill", args, stderr, parse, func(s settings) error {
		return s.drill(ctx, &report{out: stdout, progress: stderr, markdown: s.markdown, began: time.Now()})
	})
}

// settings are what the flags say.
type settings struct {
	redis, postgres string
	html            string
	rows, only      int
	seed            uint64
	markdown, steps bool
	size            scale
}

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{size: fullScale}
	flags := flag.NewFlagSet("drill", flag.ContinueOnError)
	flags.StringVar(&s.redis, "redis", "", "use the Redis at this `address` (host:port or redis:// URL) instead of an embedded one")
	flags.StringVar(&s.postgres, "postgres", "", "use the PostgreSQL database of this `DSN` instead of SQLite")
	flags.IntVar(&s.rows, "rows", 100_000, "products in the catalogue, from 10,000 to 10,000,000")
	flags.IntVar(&s.only, "scene", 0, "run only this scene, 1 to 4 (default all)")
	flags.Uint64Var(&s.seed, "seed", 1, "seed of the random choices")
	flags.BoolVar(&s.markdown, "markdown", false, "print the tables as Markdown")
	flags.StringVar(&s.html, "html", "", "write charts of it to this `file`")
	flags.BoolVar(&s.steps, "steps", false, "in place of the scenes run one with all floods, one protection more in each step")
	err := console.Parse(flags, args, "Drill runs three floods and an update race against a plain cache-aside and against levee.", stderr)
	if s.steps {
		s.size = stepScale
	}
	switch {
	case err != nil:
		return s, err
	case s.rows < s.size.avalanche || s.rows > 10_000_000:
		return s, fmt.Errorf("-rows must be from %s to 10,000,000, not %d", console.Count(int64(s.size.avalanche)), s.rows)
	case s.steps && (s.only != 0 || s.html != ""):
		return s, errors.New("-steps goes with neither -scene nor -html")
	case s.only < 0 || s.only > 4:
		return s, fmt.Errorf("-scene must be 1 to 4, or 0 for all, not %d", s.only)
	}
	return s, nil
}

// drill runs the scenes asked for and prints their tables.
func (s settings) drill(ctx context.Context, r *report) (err error) {
	around, err := s.open(ctx, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, around.close()) }()

	r.opening(around.store.name, around.redis.Name, s.size)
	if s.steps {
		results, err := s.scene(ctx, r, around, stepByStep, len(scenes))
		r.chart(results)
		r.closing()
		return err
	}
	page := s.page(around)
	for i := range scenes {
		if s.only != 0 && s.only != i+1 {
			continue
		}
		results, err := s.scene(ctx, r, around, scenes[i], i)
		if err != nil {
			return fmt.Errorf("scene %d, %w", i+1, err)
		}
		page.Charts = append(page.Charts, s.chart(i, results))
	}
	r.closing()
	if s.html == "" {
		return nil
	}
	return page.WriteFile(s.html)
}
