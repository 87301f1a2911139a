package cache_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A nestedShop has two caches under one breaker: the loader of a category reads its products
// through the other cache.
type nestedShop struct {
	*rig
	limit      int
	products   *probe[int64, string]
	categories *probe[int64, string]
	before     func() // runs in the load of a category before it asks for products

	mu        sync.Mutex // guards what follows
	now, most int        // queries at a time
}

// productsOf are those of a category: some of them are in others too.
func productsOf(category int64) []int64 {
	return []int64{category, category + 1, category + 2, 1000, 1001}
}

// query takes 5 ms of the database.
func (s *nestedShop) query() {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	time.Sleep(5 * time.Millisecond)
	s.mu.Lock()
	s.now--
	s.mu.Unlock()
}

// openShop opens the caches of one process.
func openShop(r *rig, limit int, loads string) *nestedShop {
	s := &nestedShop{rig: r, limit: limit, before: func() {}}
	b := redistest.Must(breaker.New(breaker.Options{MaxConcurrent: limit, MaxDegraded: min(limit, 16), FailureRatio: -1}))
	with := func(name string) func(*cache.Options) {
		return func(o *cache.Options) { o.Name, o.Breaker = name, b }
	}
	products := cache.Source[int64, string]{}
	if loads != "LoadMany" {
		products.Load = func(_ context.Context, key int64) (string, error) {
			s.query()
			return fmt.Sprint(key), nil
		}
	}
	if loads != "Load" {
		products.LoadMany = func(_ context.Context, keys []int64) (map[int64]string, error) {
			s.query()
			values := map[int64]string{}
			for _, key := range keys {
				values[key] = fmt.Sprint(key)
			}
			return values, nil
		}
	}
	s.products = open(r, products, with("product"))
	s.categories = open(r, cache.Source[int64, string]{Load: func(ctx context.Context, category int64) (string, error) {
		s.query()
		s.before()
		got, err := s.products.GetMany(ctx, productsOf(category))
		if err != nil {
			return "", err
		}
		if _, err := s.products.Get(ctx, category+5000); err != nil {
			return "", err
		}
		s.query()
		return fmt.Sprint(got), nil
	}}, with("category"))
	return s
}

// gather reads keys of c at once, and fails the test if a read returns an error.
func (s *nestedShop) gather(calls *sync.WaitGroup, c *probe[int64, string], keys ...int64) {
	for _, key := range keys {
		calls.Go(func() {
			if _, err := c.Get(s.ctx, key); err != nil {
				s.Errorf("limit %d: Get(%d): %v", s.limit, key, err)
			}
		})
	}
}

// check fails the test if too many queries ran at a time, or if a load took so long that it must have
// waited in vain. A category in its place may load five products at a time, and no more.
func (s *nestedShop) check(took, most time.Duration) {
	s.Helper()
	b := s.products.Stats().Breaker
	if s.most > 5*s.limit || took > most || b.Failures > 0 || b.Waiting > 0 || b.Running > 0 {
		s.Errorf("limit %d: %d queries at a time; all took %v; %+v", s.limit, s.most, took, b)
	}
}

func span(from, to int64) (keys []int64) {
	for key := from; key < to; key++ {
		keys = append(keys, key)
	}
	return keys
}

var nested = []cell{{redis: "mini", local: true}, {redis: "none"}}

func everyShop(t *testing.T, cells []cell, test func(s *nestedShop)) {
	inCells(t, cells, func(r *rig) {
		for _, loads := range []string{"Load", "LoadMany", "both"} {
			for _, limit := range redistest.Pick([]int{1, 8}, []int{1, 2, 8, 64}) {
				test(openShop(r, limit, loads))
				if r.rdb != nil {
					r.rdb.FlushAll(r.ctx)
				}
			}
		}
	})
}

// distant is true while Redis is 10 ms away: for the second read 24.
type distant struct {
	atomic.Bool
	reads atomic.Int64
}

// hook delays each command by its way.
func (d *distant) hook() redis.Hook {
	return redistest.EachCommand(func(cmd redis.Cmder) {
		switch {
		case !d.Load():
		case cmd.Name() == "getrange" && d.reads.Add(1) == 2:
			time.Sleep(24 * time.Millisecond)
		default:
			time.Sleep(10 * time.Millisecond)
		}
	})
}
