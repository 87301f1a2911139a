package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

var hitBytes = workload{
	name:       "hit-bytes",
	title:      "B. A hit in Redis, []byte, closed loop",
	about:      hitAbout,
	contenders: hitContenders,
	reference:  "rueidis GET",
	columns:    hitColumns,
	run:        func(ctx context.Context, p *process) error { return redisHits(ctx, p, raw) },
}

var hitStruct = workload{
	name:       "hit-struct",
	title:      "B. A hit in Redis, struct, closed loop",
	about:      hitAbout,
	contenders: hitContenders,
	reference:  "rueidis GET",
	columns:    hitColumns,
	run:        func(ctx context.Context, p *process) error { return redisHits(ctx, p, structs) },
}

const hitAbout = "10,000 keys in Redis, no tier in the process. Each of 1, 16, 256 and 1,024 callers asks for a random key as soon as it has the last. " +
	"Thousands of hits a second; p50 in microseconds; allocations with 256 callers. A pipeline of 64 is what Redis and go-redis can do: " +
	"its callers ask for 64 keys at a time, as many keys in all. Loads are answers that Redis did not give in time; all else is hits."

var hitContenders = []string{"levee", "rueidis GET", "go-redis GET", "go-redis GETRANGE", "go-redis AutoPipeline", "go-redis/cache", "go-zero", "rockscache", "pipeline of 64"}

var hitColumns = []column{
	counted("1: k/s", "%.1f", "rate1", true),
	quantile("p50 µs", "%.0f", "p1", 0.5, 1, true),
	counted("16: k/s", "%.1f", "rate16", true),
	quantile("p50 µs", "%.0f", "p16", 0.5, 1, false),
	counted("256: k/s", "%.1f", "rate256", true),
	quantile("p50 µs", "%.0f", "p256", 0.5, 1, false),
	counted("1,024: k/s", "%.1f", "rate1024", true),
	quantile("p50 µs", "%.0f", "p1024", 0.5, 1, false),
	counted("allocations", "%.1f", "allocs", false),
	{"loads (%)", "%.2f", false, func(r report) float64 { return 100 * r.Counts["loads"] / r.Counts["hits"] }},
}

func redisHits[V any](ctx context.Context, p *process, kind kind[V]) error {
	source := source[V]{kind: kind}
	r, err := openReader(opening[V]{contender: p.Contender, redis: p.Redis, load: source.load, kind: kind})
	if err != nil {
		return err
	}
	defer r.Close()
	keys := keysOf(pick(p.Size, 100, 10_000, 10_000))
	if err := fill(ctx, r, keys); err != nil {
		return err
	}
	loads := source.loads.Load()
	span := pick(p.Size, 20*time.Millisecond, 250*time.Millisecond, time.Second)
	for _, callers := range []int{1, 16, 256, 1024} {
		ask := askOne(r, kind, keys)
		if p.Contender == "pipeline of 64" {
			ask = askMany(r.(batchReader[V]), kind, keys, min(callers, 64))
		}
		allocs := mallocs()
		hits, took, times, err := closedLoop(ctx, callers, span, ask)
		if err != nil {
			return err
		}
		p.count(fmt.Sprint("rate", callers), float64(hits)/took.Seconds()/1000)
		p.count("hits", float64(hits))
		p.took(fmt.Sprint("p", callers), times...)
		if callers == 256 {
			p.count("allocs", (mallocs()-allocs)/float64(hits))
		}
	}
	p.count("loads", float64(source.loads.Load()-loads))
	return nil
}

// An asker asks once, for how many keys it says, and checks the answer.
type asker struct {
	keys int
	ask  func(ctx context.Context, rng *rand.Rand) error
}

func askOne[V any](r reader[V], kind kind[V], keys []string) asker {
	return asker{1, func(ctx context.Context, rng *rand.Rand) error {
		id := rng.IntN(len(keys))
		v, err := r.Get(ctx, keys[id])
		if !kind.right(v, err, id) {
			return kind.wrong(v, err, id)
		}
		return nil
	}}
}

// askMany asks for n keys in a row.
func askMany[V any](r batchReader[V], kind kind[V], keys []string, n int) asker {
	return asker{n, func(ctx context.Context, rng *rand.Rand) error {
		first := rng.IntN(len(keys) - n + 1)
		got, err := r.GetMany(ctx, keys[first:first+n])
		if err != nil {
			return err
		}
		for id := first; id < first+n; id++ {
			v, ok := got[keys[id]]
			if !ok || !kind.right(v, nil, id) {
				return kind.wrong(v, errors.New("wrong"), id)
			}
		}
		return nil
	}}
}

// closedLoop has callers ask one time after the other, until span is over, and each at least once. They want as many
// keys at a time in all as there are callers. It returns the number of keys, the wall time, and the times of one in eight askings.
func closedLoop(ctx context.Context, callers int, span time.Duration, a asker) (keys int, took time.Duration, times []time.Duration, err error) {
	var all sync.WaitGroup
	var mu sync.Mutex // guards times and err
	var over atomic.Bool
	var asked atomic.Int64
	began := time.Now()
	for g := range max(1, callers/a.keys) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 3))
			var mine []time.Duration
			var failed error
			n := 0
			for ; failed == nil && (n == 0 || !over.Load()); n++ {
				if n%8 != 0 {
					failed = a.ask(ctx, rng)
					continue
				}
				asked := time.Now()
				failed = a.ask(ctx, rng)
				mine = append(mine, time.Since(asked))
			}
			asked.Add(int64(n))
			mu.Lock()
			defer mu.Unlock()
			times, err = append(times, mine...), errors.Join(err, failed)
		})
	}
	time.Sleep(span)
	over.Store(true)
	all.Wait()
	return int(asked.Load()) * a.keys, time.Since(began), times, err
}
