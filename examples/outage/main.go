// Outage puts a service under load and then takes its Redis away, its database, and both. It shows second by second what the users of two
// such services see, which read the same products at the same time: one through a plain cache-aside, one through levee.
//
//	go run ./outage
//
// It needs no server: it embeds a Redis, which it can hang and lose, and makes two SQLite catalogues on the spot, one for each service, so
// that the flood of one does not drown the other. With a real server, which it starts itself, stops, kills and starts again:
//
//	go run ./outage -redis-server redis-server
//
// With -html FILE it also writes what it measured as a page of charts.
//
// To read it as a lesson: script.go is what happens, catalogue.go the database, services.go the two services, load.go what their users do.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"github.com/levee-go/levee/examples/internal/console"
	"github.com/levee-go/levee/examples/internal/servers"
	"github.com/redis/go-redis/v9"
)

func main() {
	redis.SetLogger(servers.Silence{}) // what fails stands in the table
	console.Main(run)
}

// run is main with its surroundings as arguments. It returns 2 for a mistake in the flags and 1 for any other failure.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return console.Run(ctx, "outage", args, stderr, parse, func(s settings) error {
		scores, err := s.play(ctx, &report{out: stdout, markdown: s.markdown})
		if err != nil || s.html == "" {
			return err
		}
		return s.page(scores).WriteFile(s.html)
	})
}

// settings are what the flags say.
type settings struct {
	redisServer string
	html        string
	seed        uint64
	markdown    bool
	size        scale
}

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{size: fullScale}
	flags := flag.NewFlagSet("outage", flag.ContinueOnError)
	flags.StringVar(&s.redisServer, "redis-server", "", "start, stop and kill this `program`, a path or a name in PATH, instead of an embedded Redis")
	flags.IntVar(&s.size.reads, "reads", fullScale.reads, "reads of each service in a second, from 10 to 5,000")
	flags.Uint64Var(&s.seed, "seed", 1, "seed of the random choices")
	flags.BoolVar(&s.markdown, "markdown", false, "print the summary as Markdown")
	flags.StringVar(&s.html, "html", "", "write charts of it to this `file`")
	err := console.Parse(flags, args, "Outage takes the Redis and the database of a service away, and shows what its users see of that.", stderr)
	switch {
	case err != nil:
		return s, err
	case s.size.reads < 10 || s.size.reads > 5000:
		return s, fmt.Errorf("-reads must be from 10 to 5,000, not %d", s.size.reads)
	}
	return s, nil
}
