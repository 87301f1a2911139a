package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/outbox"
	"github.com/levee-go/levee/examples/internal/servers"
)

// A reader stands for one process of a service: it has its own connections, its own cache and its own feed, and shares with the others what
// processes share, the Redis and the database. It reads all prices over and over.
type reader struct {
	name    string
	db      *sql.DB
	wire    *wire
	rdb     *redis.Client
	prices  *cache.Cache[int64, int64]
	changes *outbox.Outbox
	tally   *tally

	stop     func() // ends the reading
	reading  sync.WaitGroup
	unfollow func() error // ends the following; nil: it does not follow
}

// openReader starts a reader, which does not follow the feed yet.
func openReader(ctx context.Context, name string, server *servers.Redis, source servers.Source, ttl time.Duration, t *tally) (*reader, error) {
	r := &reader{name: name, wire: &wire{}, tally: t, stop: func() {}}
	options := servers.RedisOptions(server.Address)
	options.Dialer = r.wire.through(redis.NewDialer(options))
	r.rdb = redis.NewClient(options)
	if err := r.open(server.Prefix, source, ttl); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), r.close())
	}
	ctx, r.stop = context.WithCancel(ctx)
	r.reading.Go(func() { r.read(ctx) })
	return r, nil
}

func (r *reader) open(prefix string, source servers.Source, ttl time.Duration) (err error) {
	if r.db, err = source.Open(); err != nil {
		return err
	}
	r.prices, err = cache.New(r.rdb, r.price, cache.Options{
		Name: prefix, TTL: ttl,
		Jitter: cache.Off, StaleWhileRevalidate: cache.Off, // without a feed, prices are to be as old as the TTL lets them become, and no older
		RedisTimeout: time.Second,                   // an embedded Redis shares the processors with everybody else
		Logger:       slog.New(slog.DiscardHandler), // the table tells what happens
	})
	if err != nil {
		return err
	}
	r.changes, err = outbox.New(r.db, outbox.Options{Dialect: outbox.SQLite, Name: prefix})
	return err
}

// price is the loader of the cache.
func (r *reader) price(ctx context.Context, id int64) (price int64, err error) {
	err = r.db.QueryRowContext(ctx, "SELECT price FROM product WHERE id = ?", id).Scan(&price)
	return price, err
}

// read reads all prices every 10 ms until ctx ends.
func (r *reader) read(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		for id := int64(1); id <= r.tally.ledger.products(); id++ {
			began := time.Now()
			price, err := r.prices.Get(ctx, id)
			if ctx.Err() != nil {
				return
			}
			r.tally.answered(id, price, began, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// follow begins to follow the feed. This is all that a service needs to do for it.
func (r *reader) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- cache.Follow(ctx, r.changes, r.prices.Route("product", nil)) }()
	r.unfollow = func() error {
		cancel()
		r.unfollow = nil
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return fmt.Errorf("%s: following: %w", r.name, err)
		}
		return nil
	}
}

// follows reports whether it is the one among the readers that reads the feed.
func (r *reader) follows() bool { return r.prices.Stats().Follow.Following }

// kill ends the reader as the death of its process would: it can tell nobody, and its lease on the feed runs until it ends by itself.
func (r *reader) kill() {
	r.wire.cut()
	_ = r.close() // a dead process has no errors to tell
}

// close ends all that the reader does.
func (r *reader) close() (err error) {
	r.stop()
	r.reading.Wait()
	if r.unfollow != nil {
		err = r.unfollow()
	}
	if r.prices != nil {
		err = errors.Join(err, r.prices.Close())
	}
	if r.db != nil {
		err = errors.Join(err, r.db.Close())
	}
	return errors.Join(err, r.rdb.Close())
}

// A wire holds the connections of a client.
type wire struct {
	mu     sync.Mutex // guards what follows
	isCut  bool
	opened []net.Conn
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

func (w *wire) through(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.isCut {
			return nil, errors.Join(net.ErrClosed, conn.Close())
		}
		w.opened = append(w.opened, conn)
		return conn, nil
	}
}

// cut closes all connections, for good.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = true
	for _, conn := range w.opened {
		_ = conn.Close() // some were closed before
	}
}
