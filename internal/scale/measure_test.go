package main

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

// A measured is what a fleet did in a second.
type measured struct{ gets, writes, reads, scripts, messages, loads, stale, seconds float64 }

// measure runs the fleet: caches with a client each, as in processes of their own.
func (f Fleet) measure(t *testing.T, client func() *redis.Client) measured {
	var loads atomic.Int64
	load := func(_ context.Context, key int) (int, error) {
		loads.Add(1)
		time.Sleep(duration(f.Load))
		return key, nil
	}
	counts := &tally{}
	counts.overhear(t, client())
	caches := make([]*cache.Cache[int, int], f.Processes)
	for i := range caches {
		rdb := client()
		rdb.AddHook(counts)
		caches[i] = f.open(t, rdb, load)
	}
	f.drive(t, caches, duration(f.TTL+f.LocalTTL)) // until copies and values are of all ages
	before, began := counts.now(&loads, caches), time.Now()
	gets, writes := f.drive(t, caches, redistest.Pick(2*time.Second, 5*time.Second))
	after, took := counts.now(&loads, caches), time.Since(began).Seconds()
	return measured{
		gets: gets / took, writes: writes / took,
		reads: (after.reads - before.reads) / took, scripts: (after.scripts - before.scripts) / took,
		messages: (after.messages - before.messages) / took,
		loads:    (after.loads - before.loads) / took, stale: (after.stale - before.stale) / took,
		seconds: took,
	}
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

func (f Fleet) open(t *testing.T, rdb redis.UniversalClient, load cache.Loader[int, int]) *cache.Cache[int, int] {
	o := cache.Options{
		Name: "fleet", TTL: duration(f.TTL), StaleWhileRevalidate: duration(f.StaleWhileRevalidate), StaleIfError: duration(f.StaleIfError),
		Jitter: f.Jitter, EarlyRefresh: f.EarlyRefresh, Local: localcache.Options{TTL: duration(f.LocalTTL)},
		RedisTimeout: 5 * time.Second, // a busy machine is no outage
	}
	switch {
	case f.LocalKeys == 0:
		o.Local.MaxBytes = -1
	case f.LocalKeys < f.Keys:
		o.Local.MaxBytes = int64(f.LocalKeys) * 356 // an int takes that much
	}
	c, err := cache.New(rdb, load, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	redistest.Eventually(t, 10*time.Second, "messages arrive", func() bool { return c.Stats().Live })
	return c
}

// drive has readers and writers come at random for a while. Those that are late come all
// the same.
func (f Fleet) drive(t *testing.T, caches []*cache.Cache[int, int], span time.Duration) (gets, writes float64) {
	popular := f.sums()
	var all sync.WaitGroup
	var read, written atomic.Int64
	for i, c := range caches {
		all.Go(func() {
			arrive(f.Reads, span, func(rng *rand.Rand) {
				key := pick(popular, rng)
				read.Add(1)
				all.Go(func() {
					if got, err := c.Get(context.Background(), key); err != nil || got != key {
						t.Errorf("%d: %d, %v", key, got, err)
					}
				})
			})
		})
		all.Go(func() {
			arrive(f.Writes/float64(len(caches)), span, func(rng *rand.Rand) {
				key := pick(popular, rng)
				written.Add(1)
				all.Go(func() {
					write := func() error { return c.Invalidate(context.Background(), key) }
					if f.Messages == 2 {
						write = func() error {
							return c.Write(context.Background(), []int{key}, func(context.Context) error { return nil })
						}
					}
					if err := write(); err != nil {
						t.Errorf("cache %d: %v", i, err)
					}
				})
			})
		})
	}
	all.Wait()
	return float64(read.Load()), float64(written.Load())
}

// arrive calls come at random times, so many a second.
func arrive(rate float64, span time.Duration, come func(*rand.Rand)) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for due, began := 0.0, time.Now(); rate > 0; come(rng) {
		if due += rng.ExpFloat64() / rate; due > span.Seconds() {
			return
		}
		time.Sleep(duration(due) - time.Since(began))
	}
}

// sums are those of the ranks' popularity, up to 1.
func (f Fleet) sums() []float64 {
	sums := make([]float64, f.Keys)
	sum := 0.0
	for i := range sums {
		sum += math.Pow(float64(i+1), -f.Zipf)
		sums[i] = sum
	}
	for i := range sums {
		sums[i] /= sum
	}
	return sums
}

func pick(sums []float64, rng *rand.Rand) int {
	i, _ := slices.BinarySearch(sums, rng.Float64())
	return min(i, len(sums)-1)
}

// A tally counts what Redis is asked by all clients, and what it tells.
type tally struct{ reads, scripts, messages atomic.Int64 }

func (n *tally) count(cmd redis.Cmder) {
	switch cmd.Name() {
	case "getrange":
		n.reads.Add(1)
	case "evalsha":
		n.scripts.Add(1)
	}
}

// DialHook, ProcessHook and ProcessPipelineHook make it a hook of clients.
func (n *tally) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *tally) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		n.count(cmd)
		return next(ctx, cmd)
	}
}

func (n *tally) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			n.count(cmd)
		}
		return next(ctx, cmds)
	}
}

// overhear counts the messages of the caches.
func (n *tally) overhear(t *testing.T, rdb redis.UniversalClient) {
	sub := rdb.Subscribe(t.Context(), keys.OfCache("fleet").Messages())
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			if _, err := sub.ReceiveMessage(context.Background()); err != nil {
				return
			}
			n.messages.Add(1)
		}
	})
	t.Cleanup(func() {
		sub.Close()
		reading.Wait()
	})
}

// A moment is what has been counted so far.
type moment struct{ reads, scripts, messages, loads, stale float64 }

func (n *tally) now(loads *atomic.Int64, caches []*cache.Cache[int, int]) moment {
	m := moment{reads: float64(n.reads.Load()), scripts: float64(n.scripts.Load()), messages: float64(n.messages.Load()), loads: float64(loads.Load())}
	for _, c := range caches {
		m.stale += float64(c.Stats().Stale)
	}
	return m
}
