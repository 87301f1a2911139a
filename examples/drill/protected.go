package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/localcache"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

// cached is how one process reads and changes products: through a plain cache, or through a *cache.Cache[int64, Product].
type cached interface {
	Get(ctx context.Context, id int64) (Product, error)
	Set(ctx context.Context, id int64, p Product) error
	Write(ctx context.Context, ids []int64, tx func(context.Context) error) error
	Close() error
}

// A process is what a step finds in each of the processes it opens a cache in.
type process struct {
	rdb         redis.UniversalClient
	store       *Catalogue
	rows        int
	connections int    // its share of those of the database
	name        string // for the cache: the same in all processes of a step, and of its own for each step
	ttl         *expiry
	jitter      float64 // for the step that switches it on

	redisTimeout time.Duration
}

// A step is one way of reading products.
type step struct {
	name string
	open func(ctx context.Context, p process) (cached, error)
}

func openPlain(_ context.Context, p process) (cached, error) { return newPlain(p), nil }

func newPlain(p process) *plain {
	return &plain{rdb: p.rdb, load: p.store.Product, prefix: p.name, ttl: p.ttl.ttl}
}

// Most cache libraries have this: what one process loads, it loads once at a time.
var collapsed = step{name: "+ singleflight in each process", open: func(_ context.Context, p process) (cached, error) {
	c := newPlain(p)
	c.flights = new(singleflight.Group)
	return c, nil
}}

// A protection is one thing that levee adds, by an option of the cache.
type protection struct {
	name string
	add  func(ctx context.Context, p process, o *cache.Options) error
}

var (
	// One load of a key at a time, in the process and over all of them, and nothing published that a write has overtaken. It is what every
	// cache of levee does, so there is nothing to switch on.
	leases = protection{name: "levee: flight and lease", add: func(context.Context, process, *cache.Options) error { return nil }}

	// That a product does not exist is remembered too.
	nulls = protection{name: "+ null values", add: func(_ context.Context, _ process, o *cache.Options) error {
		o.NullTTL = 0
		return nil
	}}

	// Most products that do not exist are told from a bitmap in memory.
	filter = protection{name: "+ filter", add: func(ctx context.Context, p process, o *cache.Options) error {
		f, err := bloom.New(bloom.Options{Name: p.name, Capacity: uint64(p.rows)})
		if err != nil {
			return err
		}
		o.Filter = f
		return f.Rebuild(ctx, p.store.IDs(ctx))
	}}

	// Keys written together do not expire together.
	jitter = protection{name: "+ jitter", add: func(_ context.Context, p process, o *cache.Options) error {
		o.Jitter = p.jitter
		return nil
	}}

	// What is past its TTL is served while one process refreshes it, and what is read often is refreshed before.
	windows = protection{name: "+ stale-while-revalidate", add: func(_ context.Context, _ process, o *cache.Options) error {
		o.StaleWhileRevalidate, o.StaleIfError, o.EarlyRefresh = 0, 0, 0
		return nil
	}}

	// No more loads at a time than this process may have connections.
	limit = protection{name: "+ limit and breaker", add: func(_ context.Context, p process, o *cache.Options) (err error) {
		o.Breaker, err = breaker.New(breaker.Options{MaxConcurrent: p.connections, MaxDegraded: p.connections, IsFailure: isFailure})
		return err
	}}

	// What this process has read it need not read from Redis again.
	local = protection{name: "+ local tier", add: func(_ context.Context, _ process, o *cache.Options) error {
		o.Local = localcache.Options{}
		return nil
	}}
)

// protect returns the steps of a scene: the plain cache, then levee with one protection after the other.
func protect(protections ...protection) []step {
	steps := []step{{name: "plain cache-aside", open: openPlain}}
	for i := range protections {
		open := func(ctx context.Context, p process) (cached, error) { return openLevee(ctx, p, protections[:i+1]) }
		steps = append(steps, step{protections[i].name, open})
	}
	return steps
}

func openLevee(ctx context.Context, p process, protections []protection) (cached, error) {
	off, err := breaker.New(breaker.Options{FailureRatio: -1, MaxConcurrent: -1, MaxDegraded: -1})
	if err != nil {
		return nil, err
	}
	o := cache.Options{
		Name:   p.name,
		TTL:    p.ttl.usual,
		Logger: slog.New(slog.DiscardHandler), // the table tells what happens
		// The embedded Redis has to share the processors with hundreds of readers: a slow answer does not mean that it is in trouble.
		RedisTimeout: p.redisTimeout,

		// Everything is off until its turn comes; a null that lives for a millisecond is as good as none.
		NullTTL: time.Millisecond, Jitter: cache.Off, Local: localcache.Options{MaxBytes: cache.Off}, Breaker: off,
		StaleWhileRevalidate: cache.Off, StaleIfError: cache.Off, EarlyRefresh: cache.Off,
	}
	for _, protection := range protections {
		if err := protection.add(ctx, p, &o); err != nil {
			return nil, fmt.Errorf("%s: %w", protection.name, err)
		}
	}
	return cache.NewFrom(p.rdb, cache.Source[int64, Product]{
		Load: p.store.Product,
		TTL:  func(int64, Product) time.Duration { return p.ttl.ttl() },
	}, o)
}

// isFailure: that there is no such row says nothing against the database.
func isFailure(err error) bool { return !errors.Is(err, sql.ErrNoRows) }
