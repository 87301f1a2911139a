// Shop is a product-page service, twice: with a plain cache-aside and with levee, three processes each, under the same load. A live page
// shows what both do, and has buttons for trouble and switches for each of levee's protections.
//
//	go run ./shop
//
// It prints the address of the page. It starts a redis-server of its own, or embeds a small one if there is none, and keeps its products
// in SQLite. With real servers:
//
//	go run ./shop -redis 127.0.0.1:6379 -postgres postgres://user:password@host/database
//
// To read it as a lesson: service.go is the service, plain.go and levee.go are its two caches, store.go is the database. The rest is the
// stage: process.go, fleet.go, proxy.go, stage.go; load.go is who asks; live.go, buttons.go, web.go and page are the page.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/examples/internal/console"
	"github.com/levee-go/levee/examples/internal/servers"
)

func main() {
	childMain()
	redis.SetLogger(servers.Silence{}) // what fails stands in the charts
	console.Main(run)
}

// run is main with its surroundings as arguments. It returns 2 for a mistake in the flags and 1 for any other failure.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return console.Run(ctx, "shop", args, stderr, parse, func(o options) error {
		err := o.serve(ctx, func(s *stage, address string) {
			if s.note != "" {
				fmt.Fprintln(stdout, s.note)
			}
			fmt.Fprintf(stdout, "The shop is open: http://%s\n", address)
		})
		return err
	})
}

// options are what the flags say.
type options struct {
	redis, postgres, listen string
	size                    scale
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{size: fullScale}
	flags := flag.NewFlagSet("shop", flag.ContinueOnError)
	flags.StringVar(&o.redis, "redis", "", "use the Redis at this `address` (host:port or redis:// URL) instead of one of its own")
	flags.StringVar(&o.postgres, "postgres", "", "use the PostgreSQL database of this `DSN` instead of SQLite")
	flags.StringVar(&o.listen, "listen", "127.0.0.1:0", "serve the page at this `address`; whoever reaches it may press the buttons")
	flags.IntVar(&o.size.rate, "rate", fullScale.rate, "visitors of each shop in a second, from 10 to 2,000")
	err := console.Parse(flags, args, "Shop runs a product-page service with a plain cache-aside and with levee, and a live page to break both.", stderr)
	if err == nil && (o.size.rate < 10 || o.size.rate > 2000) {
		err = fmt.Errorf("-rate must be from 10 to 2,000, not %d", o.size.rate)
	}
	return o, err
}

// serve opens the shops and their page, and serves until ctx ends. It calls ready when the page can be opened.
func (o options) serve(ctx context.Context, ready func(s *stage, address string)) (err error) {
	s, err := o.size.open(ctx, o.redis, o.postgres)
	if err != nil {
		if ctx.Err() != nil {
			return nil // Ctrl-C
		}
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	l := newLive(s)
	pages, endPages := context.WithCancel(ctx)
	defer endPages()
	server := &http.Server{Handler: l.routes(), ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return pages }}
	failed := make(chan error, 1)
	var work sync.WaitGroup
	work.Go(func() { failed <- server.Serve(listener) })
	work.Go(func() { s.crowd.come(pages) })
	work.Go(func() { l.watch(pages) })
	work.Go(func() { l.feel(pages) })
	ready(s, listener.Addr().String())
	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
	}
	endPages()
	_ = server.Close()
	work.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}
