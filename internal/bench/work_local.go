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

var localBytes = workload{
	name:       "local-bytes",
	title:      "A. A hit in the process, []byte",
	about:      localAbout,
	contenders: []string{"levee", "ristretto", "ristretto TTL", "otter", "sturdyc", "go-redis/cache", "rueidis DoCache"},
	reference:  "ristretto",
	columns:    localColumns,
	run:        func(ctx context.Context, p *process) error { return localHits(ctx, p, raw) },
}

var localStruct = workload{
	name:       "local-struct",
	title:      "A. A hit in the process, struct",
	about:      localAbout,
	contenders: localBytes.contenders,
	reference:  "ristretto",
	columns:    localColumns,
	run:        func(ctx context.Context, p *process) error { return localHits(ctx, p, structs) },
}

const localAbout = "One hot key, and 100,000 keys that all fit, asked for by Zipf(1.01); nanoseconds for a hit, " +
	"with one goroutine on one processor and two on two, of the time that the process had a processor: other programs on the machine do not count, nor would waiting for a lock. levee is a cache without Redis here, which is faster to fill; " +
	"the path of a hit is the same. go-redis/cache and rueidis keep bytes in the process and decode them for each hit."

var localColumns = []column{
	counted("hot, 1 proc (ns)", "%.0f", "hot1", true),
	counted("hot, 2 procs", "%.0f", "hot2", true),
	counted("Zipf, 1 proc", "%.0f", "zipf1", true),
	counted("Zipf, 2 procs", "%.0f", "zipf2", true),
	counted("allocations", "%.1f", "allocs", false),
}

func localHits[V any](ctx context.Context, p *process, kind kind[V]) error {
	n := pick(p.Size, 1000, 100_000, 100_000)
	source := source[V]{kind: kind}
	o := opening[V]{contender: p.Contender, redis: p.Redis, load: source.load, kind: kind, capacity: 2 * n}
	if p.Contender == "levee" {
		o.redis = ""
	}
	r, err := openReader(o)
	if err != nil {
		return err
	}
	defer r.Close()
	keys := keysOf(n)
	outside := func() (float64, error) { // what did not come from the process
		reads, err := p.trips()
		return reads + float64(source.loads.Load()), err
	}
	if err := settle(ctx, r, keys, outside); err != nil {
		return err
	}
	before, err := outside()
	if err != nil {
		return err
	}
	asked := 0
	for procs := 1; procs <= 2; procs++ {
		for name, ids := range map[string][]int32{"hot": {7}, "zipf": zipf(n, pick(p.Size, 1000, 1<<20, 1<<20))} {
			m := localLoop(ctx, r, kind, keys, ids, procs, pick(p.Size, 5*time.Millisecond, 200*time.Millisecond, 500*time.Millisecond))
			if m.wrong > 0 {
				return fmt.Errorf("%d of %d answers were wrong", m.wrong, m.asked)
			}
			asked += m.asked
			p.count(fmt.Sprint(name, procs), float64(m.took)/float64(m.asked))
			if name == "zipf" && procs == 1 {
				p.count("allocs", m.allocs/float64(m.asked))
			}
		}
	}
	after, err := outside()
	if elsewhere := after - before; elsewhere > float64(asked)/1000 {
		return fmt.Errorf("%.0f of %d hits came from elsewhere", elsewhere, asked)
	}
	return err
}

// settle fills a reader until all its answers come from the process.
func settle[V any](ctx context.Context, r reader[V], keys []string, outside func() (float64, error)) error {
	last := 0.0
	for range 50 {
		if err := fill(ctx, r, keys); err != nil {
			return err
		}
		now, err := outside()
		if err != nil || now-last < float64(len(keys))/1000 {
			return err
		}
		last = now
		time.Sleep(10 * time.Millisecond) // some take what they are given into the process a little later
	}
	return fmt.Errorf("after 50 times the keys were not all in the process")
}

// zipf returns n ids below most, by Zipf(1.01). Which ids are asked for most is random.
func zipf(most, n int) []int32 {
	rng := rand.New(rand.NewPCG(1, 2))
	places := rng.Perm(most)
	z := rand.NewZipf(rng, 1.01, 1, uint64(most-1))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(places[z.Uint64()])
	}
	return ids
}

// A measured is the outcome of a loop.
type measured struct {
	asked, wrong int
	took         time.Duration // the process had its processors
	allocs       float64
}

// localLoop asks for ids over and over with as many goroutines as processors. Each asks, even if it comes late.
func localLoop[V any](ctx context.Context, r reader[V], kind kind[V], keys []string, ids []int32, procs int, span time.Duration) measured {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
	var all sync.WaitGroup
	var asked, wrong atomic.Int64
	allocs, used, began := mallocs(), ownTime(), time.Now()
	for g := range procs {
		all.Go(func() {
			at, n, bad := g*len(ids)/procs, 0, 0
			for ; n == 0 || n%4096 != 0 || time.Since(began) < span; n++ {
				if at++; at >= len(ids) {
					at = 0
				}
				id := int(ids[at])
				if v, err := r.Get(ctx, keys[id]); !kind.right(v, err, id) {
					bad++
				}
			}
			asked.Add(int64(n))
			wrong.Add(int64(bad))
		})
	}
	all.Wait()
	return measured{int(asked.Load()), int(wrong.Load()), (ownTime() - used) / time.Duration(procs), mallocs() - allocs}
}

// mallocs returns the number of objects that this process has allocated.
func mallocs() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Mallocs)
}
