package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/examples/internal/console"
	"github.com/levee-go/levee/examples/internal/servers"
)

// A scene is a flood, and the steps it is let loose on.
type scene struct {
	title func(scale) string
	ttl   func(scale) time.Duration
	steps []step
	run   func(context.Context, *trial) error

	showsStale bool // what it is about are stale answers and not queries

	// Unless nil, what a process of its own does before the fleet starts.
	prepare func(context.Context, *trial, cached) error
}

var scenes = []scene{
	{
		title: func(s scale) string {
			return fmt.Sprintf("1. Scraper flood: %s requests for absent products beside %s honest reads", console.Count(int64(s.scrapes)), console.Count(int64(s.visits)))
		},
		ttl:   func(scale) time.Duration { return time.Minute },
		steps: protect(leases, nulls, filter),
		run:   scraperFlood,
	},
	{
		title: func(s scale) string {
			return fmt.Sprintf("2. Hot product: it expires every %v under %s concurrent readers", s.hotTTL, console.Count(int64(s.hotReaders)))
		},
		ttl:   func(s scale) time.Duration { return s.hotTTL },
		steps: slices.Insert(protect(leases, windows, local), 1, collapsed),
		run:   hotProduct,
	},
	{
		title: func(s scale) string {
			return fmt.Sprintf("3. Avalanche: %s keys expire together under %s reads a second", console.Count(int64(s.avalanche)), console.Count(int64(float64(s.reads)/(s.before+s.after).Seconds())))
		},
		ttl:   func(scale) time.Duration { return time.Minute },
		steps: protect(leases, jitter, windows, limit),
		run:   avalanche,

		prepare: nightlyImport,
	},
	{
		title: func(s scale) string {
			return fmt.Sprintf("4. Update race: %d writers and %d readers on %d products", s.writers, s.raceReaders, s.rows)
		},
		ttl:   func(scale) time.Duration { return 10 * time.Second },
		steps: protect(leases, local),
		run:   updateRace,

		showsStale: true,
	},
}

// A scale says how large the floods are.
type scale struct {
	processes int
	database  databaseLoad
	patience  time.Duration // how long a user waits for an answer

	redisTimeout time.Duration // how long levee does

	flood                      time.Duration // how long the scrapers come
	scrapes, visits            int           // requests of the scrapers and of the honest readers in that time
	deadLinks                  int           // absent products that every other scrape is for; the others were never asked for before
	hotReaders                 int           // readers of the hot product
	hotFor, hotTTL             time.Duration // how long they read, and how often the product expires
	avalanche                  int           // keys that expire together
	before, after              time.Duration // how long the avalanche is watched before and after that
	reads                      int           // in that time
	raceFor                    time.Duration // how long writers and readers race
	grace                      time.Duration // how long after a write another process may take to hear of it
	rows, writers, raceReaders int           // products they race for, and how many of each there are
}

// fullScale fits four scenes into two minutes on two cores. It presses time together: a TTL of 500 ms stands for minutes.
var fullScale = scale{
	processes: 4, database: databaseLoad{queryTime: 20 * time.Millisecond, connections: 20}, patience: 2 * time.Second, redisTimeout: time.Second,
	flood: time.Second, scrapes: 1500, visits: 400, deadLinks: 50,
	hotReaders: 500, hotFor: 1600 * time.Millisecond, hotTTL: 500 * time.Millisecond,
	avalanche: 10_000, before: 2400 * time.Millisecond, after: 800 * time.Millisecond, reads: 6400,
	raceFor: time.Second, grace: 50 * time.Millisecond, rows: 16, writers: 8, raceReaders: 64,
}

// jitter returns how much of its TTL a key may lose if the first to expire, which are the first that an import as long as the last one
// writes, are to do so when the load begins. The default, a tenth of ten minutes, is a minute; here the keys have before to spread over.
func (s scale) jitter(importTook time.Duration) float64 {
	return float64(s.before) / float64(s.before+importTook*5/4)
}

// scene runs one scene, step by step. The number is in the names of its keys.
func (s settings) scene(ctx context.Context, r *report, around surroundings, scene scene, number int) (results []row, err error) {
	var importTook time.Duration
	r.scene(scene.title(s.size))
	for i, step := range scene.steps {
		p := process{
			store: around.store, rows: s.rows, connections: max(1, s.size.database.connections/s.size.processes),
			name: fmt.Sprintf("%s-%d-%d", around.redis.Prefix, number+1, i), ttl: &expiry{usual: scene.ttl(s.size)},
			jitter: s.size.jitter(importTook), redisTimeout: s.size.redisTimeout,
		}
		result, err := s.step(ctx, r, around.redis, scene, step, p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		r.row(result)
		results, importTook = append(results, result), max(importTook, result.importTook)
	}
	return results, nil
}

// step runs one step of a scene in a fleet of processes.
func (s settings) step(ctx context.Context, r *report, server *servers.Redis, scene scene, step step, p process) (result row, err error) {
	t := &trial{store: p.store, size: s.size, seed: s.seed, rng: rand.New(rand.NewPCG(s.seed, 0)), rows: s.rows, ttl: p.ttl}
	t.seen.patience, t.seen.grace = s.size.patience, s.size.grace
	defer console.During(r.progress, r.began, step.name, func() string {
		return fmt.Sprintf("%s reads, %s queries", console.Count(t.seen.reads.Load()), console.Count(p.store.queries.Load()))
	})()
	// The next step must not find what this one left.
	defer func() { err = errors.Join(err, server.Clean(context.WithoutCancel(ctx))) }()
	if scene.prepare != nil {
		c, err := step.start(ctx, server, p)
		if err != nil {
			return row{}, err
		}
		if err := errors.Join(scene.prepare(ctx, t, c), c.Close()); err != nil {
			return row{}, err
		}
	}
	defer func() { err = errors.Join(err, t.close()) }()
	for range s.size.processes {
		c, err := step.start(ctx, server, p)
		if err != nil {
			return row{}, err
		}
		t.fleet = append(t.fleet, c)
	}
	err = scene.run(ctx, t)
	t.meter.stop()
	if err != nil {
		return row{}, err
	}
	return t.result(step.name), ctx.Err()
}

// start starts a process: a cache over a connection of its own, which ends with it.
func (s step) start(ctx context.Context, server *servers.Redis, p process) (cached, error) {
	rdb := server.Client()
	p.rdb = rdb
	c, err := s.open(ctx, p)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return running{c, rdb}, nil
}

type running struct {
	cached
	rdb *redis.Client
}

func (r running) Close() error { return errors.Join(r.cached.Close(), r.rdb.Close()) }

// A trial is one step of one scene: a fleet of processes that all read products in the same way, and what their users saw.
type trial struct {
	fleet []cached
	store *Catalogue
	size  scale
	seed  uint64
	rng   *rand.Rand // of that seed, for the goroutine that runs the scene
	rows  int        // in the catalogue
	ttl   *expiry
	seen  tally
	note  string // what the columns do not tell
	meter meter

	bursts     []int         // the queries for the hot product, expiry by expiry
	importTook time.Duration // of the products of the avalanche
	end        time.Time     // when they expire
}

// process returns the process that serves a user.
func (t *trial) process(user int) cached { return t.fleet[user%len(t.fleet)] }

// begin is called when the flood comes: from here on is counted, and for some products the moment of each query too.
func (t *trial) begin(watched ...int64) {
	t.store.reset(watched...)
	t.meter.start(func() reading {
		t.seen.mu.Lock()
		defer t.seen.mu.Unlock()
		return reading{queries: t.store.queries.Load(), stale: t.seen.stale}
	})
}

// result sums up what the trial measured until the meter stopped. Rebuilds in the background go on to query after that.
func (t *trial) result(step string) row {
	last := t.meter.readings[len(t.meter.readings)-1]
	m := row{
		step: step, queries: last.queries, peak: t.store.peak.Load(), absent: t.store.absent.Load(),
		p50: t.seen.percentile(50), p99: t.seen.percentile(99), note: t.note, bursts: t.bursts, importTook: t.importTook,
		readings: t.meter.readings, busiest: most(t.meter.readings, 100*time.Millisecond),
	}
	t.seen.mu.Lock()
	defer t.seen.mu.Unlock()
	m.wrong, m.stale, m.old, m.errors = t.seen.wrong, t.seen.stale, t.seen.old, t.seen.errors
	if t.seen.first != nil {
		m.firstError = t.seen.first.Error()
	}
	return m
}

// close closes the caches of all processes.
func (t *trial) close() error {
	var errs []error
	for _, c := range t.fleet {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// An expiry is the rule by which a scene's keys expire. All processes of a trial share it.
type expiry struct {
	usual time.Duration
	end   atomic.Int64 // if not 0, the moment (UnixNano) at which all keys that are written now end
}

// ttl returns how long a key written now is valid.
func (e *expiry) ttl() time.Duration {
	if left := time.Until(time.Unix(0, e.end.Load())); left > 0 {
		return left
	}
	return e.usual
}
