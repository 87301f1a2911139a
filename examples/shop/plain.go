package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// plain is the recipe that everybody writes: GET; on a miss, or if Redis does not answer, SELECT, then SET with a TTL. A writer deletes.
type plain struct {
	rdb    *redis.Client
	store  *Store
	prefix string
	ttl    time.Duration
}

func (c *plain) key(id int64) string { return c.prefix + ":plain:" + strconv.FormatInt(id, 10) }

func (c *plain) Product(ctx context.Context, id int64) (a answer, err error) {
	if raw, err := c.rdb.Get(ctx, c.key(id)).Bytes(); err == nil && json.Unmarshal(raw, &a.Product) == nil {
		a.tier = "redis"
		return a, nil
	}
	a.tier = "source"
	if a.Product, err = c.store.Product(ctx, id); err != nil {
		return a, err
	}
	if raw, err := json.Marshal(a.Product); err == nil {
		c.rdb.Set(ctx, c.key(id), raw, c.ttl) // the answer is there; that it could not be kept is no reason to fail
	}
	return a, nil
}

func (c *plain) SetPrice(ctx context.Context, id, cents int64) error {
	if err := c.store.SetPrice(ctx, id, cents); err != nil {
		return err
	}
	return c.rdb.Del(ctx, c.key(id)).Err()
}

// Expire is not the service's own: it is a button of the page.
func (c *plain) Expire(ctx context.Context, id int64) error {
	if id != 0 {
		return c.rdb.Del(ctx, c.key(id)).Err()
	}
	var all []string
	for id := int64(1); id <= c.store.size.Products; id++ {
		all = append(all, c.key(id))
	}
	if err := c.rdb.Unlink(ctx, all...).Err(); err != nil {
		return fmt.Errorf("expiring everything: %w", err)
	}
	return nil
}
