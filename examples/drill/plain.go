package main

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

// A plain cache is the recipe that everybody writes: GET; on a miss SELECT, then SET with a TTL; after an update, DEL. Nothing is wrong
// with any line of it, and a Redis in trouble costs it no more than the detour over the database. What it lacks shows only under load.
type plain struct {
	rdb    redis.UniversalClient
	load   func(context.Context, int64) (Product, error)
	prefix string
	ttl    func() time.Duration

	flights *singleflight.Group // unless nil, this process loads a key once at a time
}

func (c *plain) Get(ctx context.Context, id int64) (Product, error) {
	if c.flights == nil {
		return c.get(ctx, id)
	}
	p, err, _ := c.flights.Do(c.key(id), func() (any, error) { return c.get(ctx, id) })
	if err != nil {
		return Product{}, err
	}
	return p.(Product), nil //nolint:forcetypeassert // get returns nothing else
}

func (c *plain) get(ctx context.Context, id int64) (Product, error) {
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
	_ = c.Set(ctx, id, p) // the answer is there; that it could not be kept is no reason to fail
	return p, nil
}

func (c *plain) Set(ctx context.Context, id int64, p Product) error {
	raw, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return c.rdb.Set(ctx, c.key(id), raw, c.ttl()).Err()
}

// Write runs tx and then deletes the keys, in this order: the other one leaves the old row in the cache more often.
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
