package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/examples/internal/console"
	"github.com/levee-go/levee/examples/internal/servers"
)

// scraperFlood: scrapers ask for products that do not exist, honest readers for ones that do.
func scraperFlood(ctx context.Context, t *trial) error {
	visited := make([]int64, t.size.visits)
	popular := rand.NewZipf(t.rng, 1.2, 10, uint64(t.rows-1))
	for i := range visited {
		visited[i] = 1 + int64(popular.Uint64())
	}
	absent := t.absentProducts()
	t.begin()
	var both sync.WaitGroup
	both.Go(func() {
		openLoad(ctx, len(absent), t.size.flood, func(i int, _ time.Time) { t.seen.scrape(ctx, t.process(i), absent[i]) })
	})
	both.Go(func() {
		openLoad(ctx, len(visited), t.size.flood, func(i int, due time.Time) { t.seen.read(ctx, t.process(i), visited[i], due, nil) })
	})
	both.Wait()
	t.note = fmt.Sprintf("queries for absent products: %s", console.Count(t.store.absent.Load()))
	return nil
}

// absentProducts returns what scrapers ask for: every other time a dead link, else something that nobody has asked for before.
func (t *trial) absentProducts() []int64 {
	absent := make([]int64, t.size.scrapes)
	for i := range absent {
		absent[i] = int64(t.rows) + 1 + t.rng.Int64N(int64(t.size.deadLinks))
		if i%2 == 0 {
			absent[i] = 1<<32 + t.rng.Int64N(1<<40)
		}
	}
	return absent
}

// hotProduct: hundreds of readers want one product, which expires again and again under them.
func hotProduct(ctx context.Context, t *trial) error {
	id := 1 + t.rng.Int64N(int64(t.rows))
	t.begin(id)
	closedLoad(ctx, t.seed, t.size.hotReaders, t.size.hotFor, 50*time.Millisecond, func(user int, _ *rand.Rand) {
		t.seen.read(ctx, t.process(user), id, time.Now(), nil)
	})
	times := t.store.askedFor(id)
	t.bursts = bursts(times, t.size.hotTTL/2)
	t.note = "queries at each expiry: " + strings.Trim(fmt.Sprint(t.bursts), "[]")
	return nil
}

// bursts counts queries that follow one another within gap together: the queries of one expiry.
func bursts(times []time.Time, gap time.Duration) []int {
	var sizes []int
	for i, at := range times {
		if i == 0 || at.Sub(times[i-1]) > gap {
			sizes = append(sizes, 0)
		}
		sizes[len(sizes)-1]++
	}
	return sizes
}

// nightlyImport puts all products of the avalanche into the cache, from a process of its own. They end at the same moment, soon after the
// import has.
func nightlyImport(ctx context.Context, t *trial, c cached) error {
	// A twentieth of them tells how long the import will take.
	sample, began := t.size.avalanche/20, time.Now()
	if err := setAll(ctx, c, sample); err != nil {
		return err
	}
	estimate := time.Since(began) * time.Duration(t.size.avalanche) / time.Duration(sample)
	t.end = time.Now().Add(estimate*5/4 + t.size.before)

	began = time.Now()
	t.ttl.end.Store(t.end.UnixNano())
	err := setAll(ctx, c, t.size.avalanche)
	t.ttl.end.Store(0) // what is loaded from now on has a life of its own
	t.importTook = time.Since(began)
	return err
}

// setAll puts the products 1 to n into the cache.
func setAll(ctx context.Context, c cached, n int) error {
	const importers = 32
	var next atomic.Int64
	failed := make(chan error, importers)
	for range importers {
		go func() {
			for {
				id := next.Add(1)
				if id > int64(n) {
					failed <- nil
					return
				}
				if err := set(ctx, c, originally(id)); err != nil {
					failed <- fmt.Errorf("importing product %d: %w", id, err)
					return
				}
			}
		}()
	}
	var first error
	for range importers {
		if err := <-failed; first == nil {
			first = err
		}
	}
	return first
}

// set stores a product, and tries again for ten seconds: a job like this one is not given up for late answers, of which
// a busy machine has many.
func set(ctx context.Context, c cached, p Product) error {
	for until := time.Now().Add(10 * time.Second); ; {
		err := c.Set(ctx, p.ID, p)
		if err == nil || time.Now().After(until) {
			return err
		}
		if err := servers.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// avalanche: readers are at work when all that was imported ends.
func avalanche(ctx context.Context, t *trial) error {
	popular := rand.NewZipf(t.rng, 1.2, 10, uint64(t.size.avalanche-1))
	wanted := make([]int64, t.size.reads)
	for i := range wanted {
		wanted[i] = 1 + int64(popular.Uint64())
	}
	if err := servers.Sleep(ctx, time.Until(t.end)-t.size.before); err != nil {
		return err
	}
	t.begin()
	openLoad(ctx, len(wanted), t.size.before+t.size.after, func(i int, due time.Time) {
		t.seen.read(ctx, t.process(i), wanted[i], due, nil)
	})
	return nil
}

// updateRace: writers change products while readers read them. A read that begins after a write was acknowledged must see it.
func updateRace(ctx context.Context, t *trial) error {
	writes := newLedger()
	var updates atomic.Int64
	t.begin()
	var both sync.WaitGroup
	both.Go(func() {
		closedLoad(ctx, t.seed, t.size.writers, t.size.raceFor, 30*time.Millisecond, func(writer int, rng *rand.Rand) {
			id, price := 1+rng.Int64N(int64(t.size.rows)), 100+rng.Int64N(10_000)
			if err := t.reprice(ctx, t.process(writer), id, price, writes); err != nil {
				t.seen.failed(err)
			}
			updates.Add(1)
		})
	})
	both.Go(func() {
		closedLoad(ctx, ^t.seed, t.size.raceReaders, t.size.raceFor, 10*time.Millisecond, func(user int, rng *rand.Rand) {
			t.seen.read(ctx, t.process(user), 1+rng.Int64N(int64(t.size.rows)), time.Now(), writes)
		})
	})
	both.Wait()
	t.afterwards(ctx, writes)
	t.note = fmt.Sprintf("%s updates; stale for more than %v after the write: %s of %s reads",
		console.Count(updates.Load()), t.size.grace, console.Count(int64(t.seen.old)), console.Count(t.seen.reads.Load()))
	return nil
}

// afterwards has every process read every product until it has heard of the last write, for as long as that may take.
func (t *trial) afterwards(ctx context.Context, writes *ledger) {
	end := time.Now().Add(t.size.grace)
	for _, c := range t.fleet {
		for id := int64(1); id <= int64(t.size.rows); id++ {
			for {
				p, err := c.Get(ctx, id)
				if err != nil || writes.overdue(id, p.Version, time.Now()) == 0 {
					break
				}
				if servers.Sleep(ctx, time.Millisecond) != nil || time.Now().After(end) {
					t.seen.behind()
					break
				}
			}
		}
	}
}

// reprice changes one product through the cache, and enters the new version in the ledger once the cache has acknowledged the write.
func (t *trial) reprice(ctx context.Context, c cached, id, price int64, writes *ledger) error {
	ctx, cancel := context.WithTimeout(ctx, t.size.patience)
	defer cancel()
	var version int64
	err := c.Write(ctx, []int64{id}, func(ctx context.Context) (err error) {
		version, err = t.store.Reprice(ctx, id, price)
		return err
	})
	if err == nil {
		writes.acknowledge(id, version)
	}
	return err
}
