package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/examples/internal/console"
)

// A scale says how large the attack is.
type scale struct {
	processes   int
	queryTime   time.Duration // of the database
	connections int           // to it, for all
	rate        float64       // of the filter's false positives
	maxLag      time.Duration // of the filter, of one process behind another
	transaction time.Duration // within which a new product is committed after it was announced
	redis       time.Duration // after which a cache does without Redis
	lasts       time.Duration // each attack
	least       [2]int        // ids that the scraper is answered at the least, without a filter and with one, however long that takes
	patience    time.Duration // how long a user waits for an answer

	visits            int           // of honest users, in the whole attack
	newEvery          time.Duration // between two new products
	rebuildEvery      time.Duration // between two Rebuilds
	clients, requests int           // the scraper's connections, and ids a second that it would like to ask for over them
}

// fullScale makes four attacks in well under 40 seconds on two cores. The scraper asks at the same pace whatever it meets, three times what
// the database is good for, and leaves the processors time for the users: what they feel is the database, not the scraper's own work.
var fullScale = scale{
	processes: 2, queryTime: 20 * time.Millisecond, connections: 20, rate: 0.01, maxLag: time.Second,
	// The embedded Redis has to share the processors with the scraper: a slow answer does not mean that it is in trouble.
	transaction: 500 * time.Millisecond, redis: time.Second,
	lasts: 6 * time.Second, patience: 2 * time.Second,
	visits: 2400, newEvery: 100 * time.Millisecond, rebuildEvery: 500 * time.Millisecond,
	clients: 64, requests: 3000,
}

// open starts or reaches the servers that the flags ask for.
func (s settings) open(ctx context.Context, r *report) (*redisServer, *Catalogue, error) {
	mark := fmt.Sprintf("%08x", rand.Uint32()) // so that programs that use the same servers do not meet
	defer console.During(r.progress, r.began, "starting", func() string { return "" })()
	server, err := openRedis(ctx, s.redis, "levee-scraper-"+mark)
	if err != nil {
		return nil, nil, err
	}
	catalogue, err := openCatalogue(ctx, s.postgres, "levee_scraper_"+mark, s.rows, s.size)
	if err != nil {
		return nil, nil, errors.Join(err, server.close())
	}
	return server, catalogue, nil
}

// runs attacks each way in turn and prints the table.
func (s settings) runs(ctx context.Context, r *report) (results []result, err error) {
	r.began = time.Now()
	server, catalogue, err := s.open(ctx, r)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, catalogue.db.Close(), server.close()) }()
	r.opening(server, catalogue, s)
	rows, empty := s.rows, heap()
	for _, w := range ways {
		site := site{
			way: w, name: fmt.Sprintf("%s-%d", server.Prefix, w), redis: server, catalogue: catalogue, rows: rows, heap: empty, size: s.size,
		}
		result, made, err := s.attack(ctx, r, site)
		if err != nil {
			return results, fmt.Errorf("%v: %w", w, err)
		}
		r.row(result)
		results, rows = append(results, result), rows+made // what is new in one run is old in the next
	}
	r.closing(results)
	return results, nil
}

// attack makes one run. It returns what it measured, and how many products it has made.
func (s settings) attack(ctx context.Context, r *report, site site) (m result, made int, err error) {
	a := &attack{site: site, seed: s.seed}
	defer console.During(r.progress, r.began, site.way.String(), func() string {
		return fmt.Sprintf("%s ids scraped, %s visits, %s queries",
			console.Count(a.scraped.Load()), console.Count(int64(a.seen.visits())), console.Count(site.catalogue.queries.Load()))
	})()
	// The next run must not find what this one left.
	defer func() { err = errors.Join(err, site.redis.clean(context.WithoutCancel(ctx))) }()
	defer func() {
		for _, h := range a.shops {
			err = errors.Join(err, h.close())
		}
	}()
	for range s.size.processes {
		h, err := site.openShop(ctx)
		if err != nil {
			return m, 0, err
		}
		a.shops = append(a.shops, h)
	}
	if err := site.fill(ctx, a.shops); err != nil {
		return m, 0, fmt.Errorf("filling the filter: %w", err)
	}
	watch := site.redis.client()
	defer watch.Close()
	before, err := site.look(ctx, watch)
	if err != nil {
		return m, 0, err
	}
	if err := a.run(ctx); err != nil {
		return m, 0, err
	}
	after, err := site.look(ctx, watch)
	return a.result(before, after), a.made, err
}

// A look is the state of things between two runs.
type look struct{ queries, absent, commands, keys, heap int64 }

func (s site) look(ctx context.Context, rdb *redis.Client) (l look, err error) {
	if l.commands, err = s.redis.commands(ctx, rdb); err != nil {
		return l, err
	}
	l.queries, l.absent = s.catalogue.queries.Load(), s.catalogue.absent.Load()
	if l.keys, err = s.redis.keys(ctx, rdb); err != nil {
		return l, err
	}
	l.heap = heap()
	return l, nil
}

// heap is how much memory is in use.
func heap() int64 {
	var memory runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools held is gone only after the second
	runtime.ReadMemStats(&memory)
	return int64(memory.HeapAlloc)
}

// result sums up what was measured between two looks.
func (a *attack) result(before, after look) result {
	m := result{
		way: a.way, scraped: a.scraped.Load(), odd: a.odd.Load(), rebuilds: int(a.rebuilds.Load()), made: a.made,
		queries: after.queries - before.queries, absent: after.absent - before.absent,
		commands: after.commands - before.commands, keys: after.keys, heap: after.heap - a.heap, atFirst: before.heap - a.heap,
		p50: a.seen.percentile(50), p99: a.seen.percentile(99),
	}
	a.seen.mu.Lock()
	defer a.seen.mu.Unlock()
	m.visits, m.missed, m.errors = len(a.seen.took), a.seen.absent, a.seen.errors
	if a.seen.first != nil {
		m.firstError = a.seen.first.Error()
	}
	return m
}
