package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
)

var footprint = workload{
	name:  "footprint",
	title: "A. What an entry takes in the process",
	about: "1,000,000 structs that all fit, with -short 100,000. Bytes of the heap for each, with the value and without the key that the caller has; " +
		"and what a collection of that heap takes, of five: processor time, and the longest time that it stopped the process.",
	contenders: []string{"levee", "ristretto", "ristretto TTL", "otter", "sturdyc", "go-redis/cache"},
	reference:  "ristretto",
	columns: []column{
		share("bytes an entry", "%.0f", "bytes", "keys", true),
		counted("collection (ms of a processor)", "%.0f", "gc", true),
		counted("longest stop (µs)", "%.0f", "stop", false),
	},
	run: func(ctx context.Context, p *process) error {
		n := pick(p.Size, 1000, 100_000, 1_000_000)
		keys := keysOf(n)
		before := heap()
		source := source[product]{kind: structs}
		o := opening[product]{contender: p.Contender, redis: p.Redis, load: source.load, kind: structs, capacity: 2 * n}
		if p.Contender == "levee" {
			o.redis = ""
		}
		r, err := openReader(o)
		if err != nil {
			return err
		}
		defer r.Close()
		outside := func() (float64, error) {
			reads, err := p.trips()
			return reads + float64(source.loads.Load()), err
		}
		if err := settle(ctx, r, keys, outside); err != nil {
			return err
		}
		p.count("bytes", float64(heap()-before))
		p.count("keys", float64(n))
		const collections = 5
		took := collecting()
		for range collections {
			runtime.GC()
		}
		p.count("gc", (collecting()-took)*1000/collections)
		var stats debug.GCStats
		debug.ReadGCStats(&stats)
		p.count("stop", float64(slices.Max(stats.Pause[:collections]).Microseconds()))
		runtime.KeepAlive(keys)
		return nil
	},
}

// collecting is the processor time, in seconds, that all collections have taken.
func collecting() float64 {
	sample := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(sample)
	return sample[0].Value.Float64()
}
