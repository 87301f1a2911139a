package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/examples/internal/servers"
	"github.com/redis/go-redis/v9"
)

// A way is how a process of the shop reads its products. Each has what the ones before it have.
type way int

const (
	readThrough way = iota // a cache that everybody writes, over Redis
	nullValues             // levee: that there is no such product is remembered too
	filtered               // and most of them are told from a bitmap in memory
	rebuilt                // which is built anew again and again during the attack
)

var ways = []way{readThrough, nullValues, filtered, rebuilt}

func (w way) String() string {
	return [...]string{"plain read-through", "levee: null values only", "levee: with the filter", "levee: filter being rebuilt"}[w]
}

// products is how a process reads products and makes new ones: through a plain cache, or through a *cache.Cache[int64, Product].
type products interface {
	Get(ctx context.Context, id int64) (Product, error)
	Write(ctx context.Context, ids []int64, tx func(context.Context) error) error
	Close() error
}

// quiet is a logger for what the table tells anyway; a log would run into the live line.
var quiet = slog.New(slog.DiscardHandler)

// A site is what all processes of one run have in common.
type site struct {
	way       way
	name      string // of the cache and of the filter: of its own for each run
	redis     *redisServer
	catalogue *Catalogue
	rows      int
	heap      int64 // that the program used before the first run
	size      scale
}

// open opens the cache of one process, with its filter if it has one.
func (s site) open(ctx context.Context, rdb *redis.Client) (p products, f *bloom.Filter, err error) {
	if s.way == readThrough {
		return &plain{rdb: rdb, load: s.catalogue.Product, prefix: s.name}, nil, nil
	}
	// The breaker would refuse users and scraper alike when the database is overwhelmed; here it shall be seen to be.
	off, err := breaker.New(breaker.Options{FailureRatio: -1, MaxConcurrent: -1, MaxDegraded: -1})
	if err != nil {
		return nil, nil, err
	}
	o := cache.Options{
		Name:         s.name,
		Breaker:      off,
		RedisTimeout: s.size.redis,
		Logger:       quiet,
	}
	if s.way >= filtered {
		if f, err = s.openFilter(ctx, rdb); err != nil {
			return nil, nil, err
		}
		o.Filter = f
	}
	c, err := cache.New(rdb, s.catalogue.Product, o)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return c, f, nil
}

// openFilter opens the filter, which all processes share through Redis.
func (s site) openFilter(ctx context.Context, rdb *redis.Client) (*bloom.Filter, error) {
	return bloom.Open(ctx, rdb, bloom.Options{
		Name:              s.name,
		Capacity:          uint64(s.rows + s.rows/10), // room to grow
		FalsePositiveRate: s.size.rate,
		MaxLag:            s.size.maxLag,
		MaxTransaction:    s.size.transaction,
		Logger:            quiet,
	})
}

// fill fills the filter from the catalogue, through one process, and waits until all answer from it.
func (s site) fill(ctx context.Context, shops []*shop) error {
	if s.way < filtered {
		return nil
	}
	if err := shops[0].filter.Rebuild(ctx, s.catalogue.IDs(ctx)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, shop := range shops {
		for shop.filter.Stats().Abstaining {
			if err := servers.Sleep(ctx, time.Millisecond); err != nil {
				return errors.New("a process does not get the filter")
			}
		}
	}
	return nil
}

// A plain cache is the recipe that everybody writes: GET; on a miss SELECT, then SET with a TTL; after a write, DEL.
type plain struct {
	rdb    redis.UniversalClient
	load   func(context.Context, int64) (Product, error)
	prefix string
}

func (c *plain) Get(ctx context.Context, id int64) (Product, error) {
	if raw, err := c.rdb.Get(ctx, c.key(id)).Bytes(); err == nil {
		var p Product
		if json.Unmarshal(raw, &p) == nil {
			return p, nil
		}
	}
	p, err := c.load(ctx, id)
	if err != nil {
		return Product{}, err
	}
	if raw, err := json.Marshal(p); err == nil {
		c.rdb.Set(ctx, c.key(id), raw, 10*time.Minute) // the answer is there; that it could not be kept is no reason to fail
	}
	return p, nil
}

func (c *plain) Write(ctx context.Context, ids []int64, tx func(context.Context) error) error {
	if err := tx(ctx); err != nil {
		return err
	}
	for _, id := range ids {
		if err := c.rdb.Del(ctx, c.key(id)).Err(); err != nil {
			return err
		}
	}
	return nil
}

func (c *plain) Close() error { return nil }

func (c *plain) key(id int64) string { return c.prefix + ":" + strconv.FormatInt(id, 10) }
