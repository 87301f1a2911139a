package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/examples/internal/servers"
)

// A way is how the processes of a service read their products.
type way struct {
	name string
	open func(rdb *redis.Client, store *Catalogue, name string, size scale) (process, error)
}

// A process is one process of a service.
type process interface {
	read(ctx context.Context, id int64) (p Product, stale bool, err error)
	breakers() string // that are open: R to Redis, D to the database, d if it is half open
	Close() error
}

// A service is a few processes with one database.
type service struct {
	name  string
	size  scale
	store *Catalogue
	fleet []process
	rdbs  []*redis.Client

	tally  tally
	asking sync.WaitGroup // reads under way, though their users may have left
	known  int64          // queries at the last beat
}

func openService(ctx context.Context, w way, redisAddr, name string, size scale) (s *service, err error) {
	s = &service{name: w.name, size: size, tally: tally{scenes: map[int]*seen{}}}
	if s.store, err = openCatalogue(ctx, name, size); err != nil {
		return nil, err
	}
	for range size.processes {
		rdb := redis.NewClient(servers.RedisOptions(redisAddr))
		s.rdbs = append(s.rdbs, rdb)
		// Both services use one Redis; a plain cache writes its keys under other names.
		p, err := w.open(rdb, s.store, "outage-"+strings.Fields(w.name)[0], size)
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.fleet = append(s.fleet, p)
	}
	return s, nil
}

func (s *service) close() error {
	var errs []error
	for _, p := range s.fleet {
		errs = append(errs, p.Close())
	}
	for _, rdb := range s.rdbs {
		errs = append(errs, rdb.Close())
	}
	s.asking.Wait()
	return errors.Join(append(errs, s.store.db.Close())...)
}

// beat returns what was measured since the last one.
func (s *service) beat() figures {
	queries, peak := s.store.look()
	f := figures{seen: s.tally.next(), queries: queries - s.known, peak: peak}
	s.known = queries
	var states []string
	for _, p := range s.fleet {
		states = append(states, cmp.Or(p.breakers(), "-"))
	}
	f.breakers = strings.Join(states, " ")
	return f
}

// A plain cache is the recipe that everybody writes: GET; on a miss, or if Redis does not answer, SELECT, then SET with a TTL.
type plain struct {
	rdb   *redis.Client
	store *Catalogue
	name  string
	ttl   time.Duration
}

func openPlain(rdb *redis.Client, store *Catalogue, name string, size scale) (process, error) {
	return &plain{rdb, store, name, size.ttl}, nil
}

func (c *plain) read(ctx context.Context, id int64) (p Product, stale bool, err error) {
	key := c.name + ":" + strconv.FormatInt(id, 10)
	if raw, err := c.rdb.Get(ctx, key).Bytes(); err == nil && json.Unmarshal(raw, &p) == nil {
		return p, false, nil
	}
	if p, err = c.store.Product(ctx, id); err != nil {
		return p, false, err
	}
	if raw, err := json.Marshal(p); err == nil {
		c.rdb.Set(ctx, key, raw, c.ttl) // the answer is there; that it could not be kept is no reason to fail
	}
	return p, false, nil
}

func (c *plain) breakers() string { return "" }
func (c *plain) Close() error     { return nil }

// A guarded cache is levee's.
type guarded struct {
	*cache.Cache[int64, Product]
}

func openLevee(rdb *redis.Client, store *Catalogue, name string, size scale) (process, error) {
	share := size.connections / size.processes // of the database's connections
	b, err := breaker.New(breaker.Options{
		MaxConcurrent: share, MaxDegraded: share,
		// As everything here these are about a tenth of what they would be: a breaker that opens leaves the database alone for a fifth of a second.
		Timeout: size.loadTimeout, MinRequests: 2 * share, Window: 3 * size.loadTimeout, Cooldown: 200 * time.Millisecond,
		IsFailure: func(err error) bool { return !isNotFound(err) },
	})
	if err != nil {
		return nil, err
	}
	c, err := cache.New(rdb, store.Product, cache.Options{
		Name: name, TTL: size.ttl, Breaker: b, IsNotFound: isNotFound, RedisTimeout: size.redisTimeout,
		Logger: slog.New(slog.DiscardHandler), // the timeline tells what happens
	})
	if err != nil {
		return nil, err
	}
	return guarded{c}, nil
}

func (c guarded) read(ctx context.Context, id int64) (p Product, stale bool, err error) {
	got, err := c.Fetch(ctx, id)
	return got.Value, got.Stale, err
}

func (c guarded) breakers() string {
	stats, open := c.Stats(), ""
	if stats.Rebuild.Outage {
		open = "R"
	}
	switch stats.Breaker.State {
	case breaker.Open:
		open += "D"
	case breaker.HalfOpen:
		open += "d"
	}
	return open
}
