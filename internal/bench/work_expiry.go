package main

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

var expiry = workload{
	name:  "expiry",
	title: "E. Mass expiry",
	about: "5,000 keys are loaded together and live for 2 s. Callers ask for random ones, 10,000 a second in an open loop, for 6 s; a load takes 5 ms. " +
		"The most loads that began within 100 ms (250 if they were spread evenly), loads in all, and microseconds to an answer. " +
		"go-redis/cache's tier in the process keeps values for a minute of its own, whatever their TTL, so that nothing expires here. " +
		"rockscache is left out: it keeps nothing with a TTL below 10 s.",
	contenders: []string{"levee", "sturdyc", "sturdyc early", "go-redis/cache", "go-zero", "nothing"},
	reference:  "sturdyc early",
	columns: []column{
		counted("peak", "%.0f", "peak", false),
		counted("loads", "%.0f", "loads", true),
		quantile("p50 µs", "%.0f", "read", 0.5, 1, false),
		quantile("p99 µs", "%.0f", "read", 0.99, 1, true),
		quantile("p99.9 µs", "%.0f", "read", 0.999, 1, false),
		counted("failed", "%.0f", "failed", false),
	},
	run: func(ctx context.Context, p *process) error {
		source := source[product]{kind: structs, takes: 5 * time.Millisecond}
		began := time.Now()
		began100ms := make([]atomic.Int64, 1000) // loads that began in each 100 ms
		load := func(ctx context.Context, key string) (product, error) {
			began100ms[min(int(time.Since(began)/(100*time.Millisecond)), len(began100ms)-1)].Add(1)
			return source.load(ctx, key)
		}
		r, err := openReader(opening[product]{contender: p.Contender, redis: p.Redis, load: load, kind: structs, ttl: 2 * time.Second, capacity: 10_000})
		if err != nil {
			return err
		}
		defer r.Close()
		keys := keysOf(pick(p.Size, 50, 5000, 5000))
		if err := fill(ctx, r, keys); err != nil {
			return err
		}
		filled := source.loads.Load()
		for i := range began100ms {
			began100ms[i].Store(0)
		}
		if err := openLoop(ctx, p, "read", 10_000, pick(p.Size, 200*time.Millisecond, 2500*time.Millisecond, 6*time.Second), r, structs, keys); err != nil {
			return err
		}
		p.count("loads", float64(source.loads.Load()-filled))
		peak := slices.Max(counts(began100ms))
		p.count("peak", float64(peak))
		return nil
	},
}

func counts(of []atomic.Int64) []int64 {
	n := make([]int64, len(of))
	for i := range of {
		n[i] = of[i].Load()
	}
	return n
}
