package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

var race = workload{
	name:  "race",
	title: "F. Reads beside writes",
	about: "A writer changes 8 rows, one every 5 ms, and invalidates each as the contender's documentation says; two processes of 16 readers ask for them meanwhile. " +
		"A load takes 2 ms after it has read the row. Stale is an answer older than a write whose invalidation had returned before the read began. " +
		"Every contender has its tier in the process, if there is one.",
	contenders: []string{"levee", "rueidis DoCache", "rockscache", "rockscache strong", "go-redis/cache", "go-redis GET", "go-zero", "sturdyc"},
	reference:  "levee",
	processes:  2,
	columns: []column{
		counted("reads", "%.0f", "reads", false),
		counted("stale", "%.0f", "stale", false),
		{"stale (%)", "%.3f", false, func(r report) float64 { return 100 * r.Counts["stale"] / r.Counts["reads"] }},
		share("loads a write", "%.2f", "loads", "writes", false),
		quantile("read p50 µs", "%.0f", "read", 0.5, 1, false),
		quantile("p99 µs", "%.0f", "read", 0.99, 1, false),
		quantile("invalidation p50 µs", "%.0f", "invalidate", 0.5, 1, true),
		counted("failed", "%.0f", "failed", false),
	},
	run: func(ctx context.Context, p *process) error {
		db := redis.NewClient(&redis.Options{Addr: p.Direct})
		defer db.Close()
		rows := rows{db: db}
		opened, err := openReader(opening[product]{contender: p.Contender, redis: p.Redis, load: rows.load, kind: structs, capacity: 10_000})
		if err != nil {
			return err
		}
		defer opened.Close()
		r := opened.(invalidator[product])
		if err := p.meet(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, pick(p.Size, 300*time.Millisecond, 2*time.Second, 5*time.Second))
		defer cancel()
		var all sync.WaitGroup
		errs := make([]error, 17)
		if p.Process == 0 {
			all.Go(func() { errs[16] = rows.write(ctx, p, r) })
		}
		for i := range 16 {
			all.Go(func() { errs[i] = rows.read(ctx, p, r) })
		}
		all.Wait()
		p.count("loads", float64(rows.loads.Load()))
		return errors.Join(errs...)
	},
}

// rows are the database: counters in Redis, asked directly. Beside each stands the version before which no answer
// may be after its invalidation.
type rows struct {
	db    *redis.Client
	loads atomic.Int64
}

const racedRows = 8

// load reads the version of a row, as the Stock of a product.
func (r *rows) load(ctx context.Context, key string) (product, error) {
	r.loads.Add(1)
	version, err := r.db.Get(ctx, "row:"+key).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return product{}, err
	}
	time.Sleep(2 * time.Millisecond)
	v := structs.make(idOf(key))
	v.Stock = version
	return v, nil
}

// write changes rows until ctx ends.
func (r *rows) write(ctx context.Context, p *process, c invalidator[product]) error {
	keys := keysOf(racedRows)
	for i := 0; i == 0 || ctx.Err() == nil; i++ {
		key := keys[i%len(keys)]
		version, err := r.db.Incr(context.Background(), "row:"+key).Result()
		if err != nil {
			return err
		}
		began := time.Now()
		if err := c.Invalidate(context.Background(), key); err != nil {
			return fmt.Errorf("invalidation: %w", err)
		}
		p.took("invalidate", time.Since(began))
		p.count("writes", 1)
		if err := r.db.Set(context.Background(), "least:"+key, version, 0).Err(); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// read asks for rows until ctx ends, and counts what is stale.
func (r *rows) read(ctx context.Context, p *process, c reader[product]) error {
	keys := keysOf(racedRows)
	var reads, stale, failed float64
	var times []time.Duration
	for reads == 0 || ctx.Err() == nil {
		id := rand.IntN(racedRows)
		least, err := r.db.Get(context.Background(), "least:"+keys[id]).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		began := time.Now()
		v, err := c.Get(context.Background(), keys[id])
		if reads++; int(reads)%8 == 1 {
			times = append(times, time.Since(began))
		}
		switch {
		case err != nil:
			failed++
		case structs.id(v) != id:
			return structs.wrong(v, err, id)
		case v.Stock < least:
			stale++
		}
	}
	p.count("reads", reads)
	p.count("stale", stale)
	p.count("failed", failed)
	p.took("read", times...)
	return nil
}
