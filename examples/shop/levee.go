package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/localcache"
)

// protected is the shop over levee. A real one would be the three calls of Product, SetPrice and New: what is more here serves the switches.
type protected struct {
	rdb          *redis.Client
	store        *Store
	prefix       string
	ttl, timeout time.Duration
	places       int // loads at a time
	log          *slog.Logger
	filter       *bloom.Filter

	turns   atomic.Uint64
	present atomic.Pointer[arrangement]
	mu      sync.Mutex // one change at a time
}

// Product is the page's read.
func (s *protected) Product(ctx context.Context, id int64) (answer, error) {
	got, err := s.fetch(ctx, id)
	return answer{got.Value, got.Tier.String(), got.Stale}, err
}

// SetPrice is the writer: nobody publishes the old price while the transaction runs, and nobody serves it when Write has returned, but for
// the few milliseconds until other processes have heard of it. If Redis is away, the price is changed all the same, and they hear of it later.
func (s *protected) SetPrice(ctx context.Context, id, cents int64) error {
	return cache.Committed(s.products().Write(ctx, []int64{id}, func(ctx context.Context) error { return s.store.SetPrice(ctx, id, cents) }))
}

// staleIfError is how long an old price is better than none.
const staleIfError = 10 * time.Minute

// Protections say which of them are on.
type Protections struct{ Filter, Nulls, Jitter, Lease, Local, Breaker bool }

var allProtections = Protections{true, true, true, true, true, true}

// options are those of the cache. Everything that is on is what an application would write, but that TTLs of minutes are seconds here.
func (s *protected) options(on Protections) (cache.Options, error) {
	limits := breaker.Options{Name: "products", MaxConcurrent: s.places, MaxDegraded: s.places, Timeout: 3 * time.Second}
	o := cache.Options{
		Name: s.prefix, TTL: s.ttl, Jitter: 0.5, StaleWhileRevalidate: s.ttl, StaleIfError: staleIfError,
		Local: localcache.Options{TTL: s.ttl, HotKeys: 50}, Filter: s.filter, RedisTimeout: s.timeout, Logger: s.log,
	}
	if !on.Filter {
		o.Filter = nil
	}
	if !on.Nulls {
		o.NullTTL, o.Local.MaxNullBytes = time.Millisecond, -1
	}
	if !on.Jitter {
		o.Jitter, o.EarlyRefresh = cache.Off, cache.Off
	}
	if !on.Lease {
		o.Rebuild.WaitBudget = 1 // nobody waits for another process
	}
	if !on.Local {
		o.Local = localcache.Options{MaxBytes: cache.Off}
	}
	if !on.Breaker {
		limits = breaker.Options{FailureRatio: -1, MaxConcurrent: -1, MaxDegraded: -1, MaxBackground: -1, Timeout: 10 * time.Second}
	}
	var err error
	o.Breaker, err = breaker.New(limits)
	return o, err
}

// An arrangement is what the switches have made. It has one cache. But levee has no switch for sharing a load between the readers of a
// process, so without the protections of a hot key there are several, and readers use them in turn: they know as little of one another
// as so many processes.
type arrangement struct {
	caches []*cache.Cache[int64, Product]
	memory localcache.Budget
}

const strangers = 16

// arrange makes caches as the switches say, and closes those of before.
func (s *protected) arrange(on Protections) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := s.options(on)
	if err != nil {
		return err
	}
	a := &arrangement{}
	n := 1
	if !on.Lease {
		if n = strangers; on.Local {
			o.Local.Budget = &a.memory
		}
	}
	for range n {
		c, err := cache.New(s.rdb, s.store.Product, o)
		if err != nil {
			return errors.Join(err, a.close())
		}
		a.caches = append(a.caches, c)
	}
	if last := s.present.Swap(a); last != nil {
		go last.close()
	}
	return nil
}

func (a *arrangement) close() (err error) {
	for _, c := range a.caches {
		err = errors.Join(err, c.Close())
	}
	return err
}

func (s *protected) products() *cache.Cache[int64, Product] {
	caches := s.present.Load().caches
	return caches[s.turns.Add(1)%uint64(len(caches))]
}

// fetch asks again if the cache was exchanged for another meanwhile.
func (s *protected) fetch(ctx context.Context, id int64) (cache.Result[Product], error) {
	for {
		c := s.products()
		got, err := c.Fetch(ctx, id)
		if !errors.Is(err, cache.ErrClosed) || s.present.Load().caches[0] == c {
			return got, err
		}
	}
}

// Expire is not the service's own: it is a button of the page. What a cache holds of a key or of all keys ends in all processes.
func (s *protected) Expire(ctx context.Context, id int64) error {
	if id != 0 {
		return s.products().Invalidate(ctx, id)
	}
	return s.products().Clear(ctx)
}

// open makes the filter and the caches. The filter is shared: one process builds it.
func (s *protected) open(ctx context.Context, on Protections) (err error) {
	s.filter, err = bloom.Open(ctx, s.rdb, bloom.Options{
		Name: s.prefix, Capacity: 100_000, Logger: s.log,
		MaxTransaction: -1,               // nobody adds a row while this runs
		MaxLag:         10 * time.Second, // with a second, what a busy laptop does shows in the charts
	})
	if err != nil {
		return err
	}
	if !s.filter.Stats().Complete {
		if err := s.filter.Rebuild(ctx, s.store.IDs(ctx)); err != nil {
			return fmt.Errorf("building the filter: %w", err)
		}
	}
	return s.arrange(on)
}

func (s *protected) close() error { return errors.Join(s.present.Load().close(), s.filter.Close()) }

// A health is what one process says of itself.
type health struct {
	Outage  bool   // Redis is not asked
	Breaker string // closed, open, half-open
}

func (s *protected) health() health {
	stats := s.present.Load().caches[0].Stats()
	return health{stats.Rebuild.Outage, stats.Breaker.State.String()}
}
