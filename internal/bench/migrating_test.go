package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/dtm-labs/rockscache"
	rediscache "github.com/go-redis/cache/v9"
	"github.com/redis/go-redis/v9"
	"github.com/viccon/sturdyc"
)

// What docs/migrating.md shows of others. It is compiled against them and not run.

type row struct{ Name string }

type sources interface {
	Product(ctx context.Context, id int64) (row, error)
	Rename(ctx context.Context, id int64, name string) error
}

// docs/migrating.md, by hand.
func _(ctx context.Context, rdb redis.UniversalClient, store sources) (row, error) {
	key := fmt.Sprint("product:", 42)
	var p row
	if raw, err := rdb.Get(ctx, key).Bytes(); err == nil && json.Unmarshal(raw, &p) == nil {
		return p, nil
	}
	p, err := store.Product(ctx, 42)
	if err != nil {
		return p, err
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return p, err
	}
	return p, rdb.Set(ctx, key, raw, 10*time.Minute).Err()
}

// docs/migrating.md, by hand.
func _(ctx context.Context, rdb redis.UniversalClient, store sources) error {
	if err := store.Rename(ctx, 42, "new"); err != nil {
		return err
	}
	return rdb.Del(ctx, fmt.Sprint("product:", 42)).Err()
}

// docs/migrating.md, go-redis/cache.
func _(ctx context.Context, rdb *redis.Client, store sources) error {
	c := rediscache.New(&rediscache.Options{Redis: rdb, LocalCache: rediscache.NewTinyLFU(10_000, time.Minute)})
	var p row
	err := c.Once(&rediscache.Item{
		Ctx: ctx, Key: fmt.Sprint("product:", 42), Value: &p, TTL: 10 * time.Minute,
		Do: func(*rediscache.Item) (any, error) { return store.Product(ctx, 42) },
	})
	if err != nil {
		return err
	}
	if err := store.Rename(ctx, 42, "new"); err != nil {
		return err
	}
	return c.Delete(ctx, fmt.Sprint("product:", 42))
}

// docs/migrating.md, rockscache.
func _(ctx context.Context, rdb redis.UniversalClient, store sources) error {
	c := rockscache.NewClient(rdb, rockscache.NewDefaultOptions())
	text, err := c.Fetch2(ctx, fmt.Sprint("product:", 42), 10*time.Minute, func() (string, error) {
		p, err := store.Product(ctx, 42)
		if errors.Is(err, sql.ErrNoRows) {
			return "", nil // cached for EmptyExpire; callers get ""
		}
		if err != nil {
			return "", err
		}
		raw, err := json.Marshal(p)
		return string(raw), err
	})
	if err != nil {
		return err
	}
	_ = text
	if err := store.Rename(ctx, 42, "new"); err != nil {
		return err
	}
	return c.TagAsDeleted2(ctx, fmt.Sprint("product:", 42))
}

// docs/migrating.md, sturdyc.
func _(ctx context.Context, store sources) error {
	c := sturdyc.New[row](10_000, 10, 10*time.Minute, 10,
		sturdyc.WithMissingRecordStorage(),
		sturdyc.WithEarlyRefreshes(2*time.Minute, 4*time.Minute, 8*time.Minute, 10*time.Millisecond))
	p, err := c.GetOrFetch(ctx, fmt.Sprint("product:", 42), func(ctx context.Context) (row, error) {
		p, err := store.Product(ctx, 42)
		if errors.Is(err, sql.ErrNoRows) {
			err = sturdyc.ErrNotFound // callers get ErrMissingRecord
		}
		return p, err
	})
	if err != nil {
		return err
	}
	if err := store.Rename(ctx, 42, p.Name+" (new)"); err != nil {
		return err
	}
	c.Delete(fmt.Sprint("product:", 42)) // in this process
	return nil
}
