// Feed shows what a change feed does for a database that others write to. A job without levee and without a cache changes prices, as one in
// another language would: its transactions say in a table which keys they change, in one line. Three readers serve the prices from their
// caches and follow that table. The program shows how long after a commit they serve the new price: with the feed, when the reader that
// follows it is killed, without a feed, and when the feed is back.
//
//	go run ./feed
//
// It needs no server: it embeds a Redis, and makes a SQLite database on the spot. With a real Redis, in which it works only under a key prefix
// that it removes at the end:
//
//	go run ./feed -redis 127.0.0.1:6379
//
// To read it as a lesson: writer.go is the job, reader.go what a process of yours would have, script.go what happens to them.
package main

import (
	"context"
	"flag"
	"io"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/examples/internal/console"
	"github.com/levee-go/levee/examples/internal/servers"
)

func main() {
	redis.SetLogger(servers.Silence{}) // a killed reader's client would complain of its connections
	console.Main(run)
}

// run is main with its surroundings as arguments. It returns 2 for a mistake in the flags and 1 for any other failure.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return console.Run(ctx, "feed", args, stderr, parse, func(s settings) error {
		_, err := s.play(ctx, &report{out: stdout, markdown: s.markdown})
		return err
	})
}

// settings are what the flags say.
type settings struct {
	redis    string
	markdown bool
	size     scale
}

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{size: fullScale}
	flags := flag.NewFlagSet("feed", flag.ContinueOnError)
	flags.StringVar(&s.redis, "redis", "", "use the Redis at this `address` (host:port or redis:// URL) instead of an embedded one")
	flags.BoolVar(&s.markdown, "markdown", false, "print the table as Markdown")
	err := console.Parse(flags, args, "Feed shows how soon caches serve what others have written to the database, with a change feed and without.", stderr)
	return s, err
}
