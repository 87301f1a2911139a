package main

import (
	"context"
	"fmt"
	"time"
)

var batches = workload{
	name:  "batches",
	title: "Batches of 10, 100 and 1,000 keys that are in Redis",
	about: "One caller, no tier in the process, values of 200 bytes; microseconds for a batch. The pipeline is one of go-redis, of GETRANGEs. " +
		"MGET does not work over the slots of a cluster, nor does rockscache's script.",
	contenders: []string{"levee", "pipeline", "go-redis MGET", "rueidis MGET", "rockscache"},
	reference:  "pipeline",
	columns: []column{
		quantile("10: p50 µs", "%.0f", "of10", 0.5, 1, true),
		quantile("p99", "%.0f", "of10", 0.99, 1, false),
		quantile("100: p50 µs", "%.0f", "of100", 0.5, 1, true),
		quantile("p99", "%.0f", "of100", 0.99, 1, false),
		quantile("1,000: p50 µs", "%.0f", "of1000", 0.5, 1, true),
		quantile("p99", "%.0f", "of1000", 0.99, 1, false),
		counted("allocations a key, of 100", "%.1f", "allocs", false),
		{"loads (%)", "%.2f", false, func(r report) float64 { return 100 * r.Counts["loads"] / r.Counts["hits"] }},
	},
	run: func(ctx context.Context, p *process) error {
		source := source[[]byte]{kind: raw}
		r, err := openReader(opening[[]byte]{contender: p.Contender, redis: p.Redis, load: source.load, kind: raw})
		if err != nil {
			return err
		}
		defer r.Close()
		keys := keysOf(pick(p.Size, 2000, 10_000, 10_000))
		if err := fill(ctx, r, keys); err != nil {
			return err
		}
		loads := source.loads.Load()
		for _, n := range []int{10, 100, 1000} {
			allocs := mallocs()
			got, _, times, err := closedLoop(ctx, 1, pick(p.Size, 20*time.Millisecond, 200*time.Millisecond, time.Second), askMany(r.(batchReader[[]byte]), raw, keys, n))
			if err != nil {
				return err
			}
			p.count("hits", float64(got))
			p.took(fmt.Sprint("of", n), times...)
			if n == 100 {
				p.count("allocs", (mallocs()-allocs)/float64(got))
			}
		}
		p.count("loads", float64(source.loads.Load()-loads))
		return nil
	},
}
