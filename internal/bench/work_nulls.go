package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

var nulls = workload{
	name:  "nulls",
	title: "D. A flood of keys that do not exist",
	about: "64 callers ask for 200,000 keys that do not exist, each once, and after every hundred of them for one of a hundred keys, of a million, that do. " +
		"Loads of absent keys, thousands of keys a second, and what the flood leaves in Redis. A load takes no time here. " +
		"bits-and-blooms is a bare filter before the source, without a cache.",
	contenders: []string{"levee + filter", "levee", "go-redis/cache", "go-zero", "rockscache", "sturdyc", "bits-and-blooms"},
	reference:  "levee",
	columns: []column{
		counted("loads", "%.0f", "loads", false),
		counted("k/s", "%.0f", "rate", true),
		counted("in Redis (MB)", "%.2f", "mb", false),
		counted("failed", "%.0f", "failed", false),
	},
	run: func(ctx context.Context, p *process) error {
		rows := pick(p.Size, 1000, 100_000, 1_000_000)
		source := source[[]byte]{kind: raw, rows: rows}
		r, err := openReader(opening[[]byte]{contender: p.Contender, redis: p.Redis, load: source.load, kind: raw, rows: rows, capacity: 10_000})
		if err != nil {
			return err
		}
		defer r.Close()
		if err := fill(ctx, r, keysOf(realKeys)); err != nil { // and open the connections
			return err
		}
		loads := source.loads.Load()
		before, err := askServer(p.stats, "used_memory")
		if err != nil {
			return err
		}
		absent := keysFrom(rows, pick(p.Size, 1000, 50_000, 200_000))
		began := time.Now()
		failures, err := flood(ctx, r, absent)
		if err != nil {
			return err
		}
		p.count("failed", float64(failures))
		p.count("rate", float64(len(absent))*1.01/time.Since(began).Seconds()/1000)
		p.count("loads", float64(source.loads.Load()-loads))
		after, err := askServer(p.stats, "used_memory")
		p.count("mb", (after-before)/1e6)
		return err
	},
}

// realKeys is how many keys that exist are asked for.
const realKeys = 100

// flood asks for each of the absent keys, and after a hundred of them for a real one. It returns how many were not answered.
func flood(ctx context.Context, r reader[[]byte], absent []string) (failures int64, err error) {
	real := keysOf(realKeys)
	var next, failed atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, 64)
	for worker := range errs {
		all.Go(func() {
			for errs[worker] == nil {
				i := int(next.Add(1)) - 1
				if i >= len(absent) {
					return
				}
				v, err := r.Get(ctx, absent[i])
				if err == nil {
					errs[worker] = raw.wrong(v, err, idOf(absent[i]))
				} else if !errors.Is(err, errAbsent) {
					failed.Add(1)
				}
				if id := i / 100 % realKeys; i%100 == 0 {
					v, err := r.Get(ctx, real[id])
					if errors.Is(err, errAbsent) || err == nil && raw.id(v) != id {
						errs[worker] = raw.wrong(v, err, id)
					} else if err != nil {
						failed.Add(1)
					}
				}
			}
		})
	}
	all.Wait()
	return failed.Load(), errors.Join(errs...)
}
