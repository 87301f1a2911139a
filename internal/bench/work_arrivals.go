package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

var arrivals = workload{
	name:  "arrivals",
	title: "B. A hit in Redis, []byte, open loop",
	about: "10,000 keys in Redis, no tier in the process. Callers arrive at random (Poisson), whether or not those before them have their answers, as they do at a service. " +
		"Microseconds from the moment at which a caller was due to its answer. \"nothing\" answers at once: what the measuring itself takes.",
	contenders: []string{"levee", "rueidis GET", "go-redis GET", "go-redis AutoPipeline", "go-redis/cache", "go-zero", "rockscache", "nothing"},
	reference:  "rueidis GET",
	columns: []column{
		quantile("2 k/s: p50", "%.0f", "at2000", 0.5, 1, true),
		quantile("p99", "%.0f", "at2000", 0.99, 1, true),
		quantile("10 k/s: p50", "%.0f", "at10000", 0.5, 1, true),
		quantile("p99", "%.0f", "at10000", 0.99, 1, true),
		quantile("30 k/s: p50", "%.0f", "at30000", 0.5, 1, true),
		quantile("p99", "%.0f", "at30000", 0.99, 1, true),
		counted("failed", "%.0f", "failed", false),
	},
	run: func(ctx context.Context, p *process) error {
		source := source[[]byte]{kind: raw}
		r, err := openReader(opening[[]byte]{contender: p.Contender, redis: p.Redis, load: source.load, kind: raw})
		if err != nil {
			return err
		}
		defer r.Close()
		keys := keysOf(pick(p.Size, 100, 10_000, 10_000))
		if err := fill(ctx, r, keys); err != nil {
			return err
		}
		for _, rate := range []int{2000, 10_000, 30_000} {
			if err := openLoop(ctx, p, fmt.Sprint("at", rate), rate, pick(p.Size, 30*time.Millisecond, 500*time.Millisecond, 2*time.Second), r, raw, keys); err != nil {
				return err
			}
		}
		return nil
	},
}

// openLoop has callers arrive at a rate, each on a goroutine of its own, and reports what they took under name and how
// many failed. An answer for another key is an error.
func openLoop[V any](ctx context.Context, p *process, name string, rate int, span time.Duration, r reader[V], kind kind[V], keys []string) error {
	runtime.LockOSThread() // which sleepUntil puts to sleep
	defer runtime.UnlockOSThread()
	rng := rand.New(rand.NewPCG(4, 5))
	n := int(span.Seconds() * float64(rate))
	times := make([]time.Duration, n)
	var all sync.WaitGroup
	var failed, wrong atomic.Int64
	due := time.Now()
	for i := range n {
		due = due.Add(time.Duration(rng.ExpFloat64() / float64(rate) * float64(time.Second)))
		id, due := rng.IntN(len(keys)), due
		sleepUntil(due)
		all.Go(func() {
			v, err := r.Get(ctx, keys[id])
			times[i] = time.Since(due)
			if err != nil {
				failed.Add(1)
			} else if kind.id(v) != id {
				wrong.Add(1)
			}
		})
	}
	all.Wait()
	p.took(name, times...)
	p.count("failed", float64(failed.Load()))
	if n := wrong.Load(); n > 0 {
		return fmt.Errorf("%d of %d answers were wrong", n, len(times))
	}
	return nil
}
