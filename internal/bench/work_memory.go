package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/fleet"
)

var memory = workload{
	name:  "memory",
	title: "What a key takes",
	about: "Bytes for each of 50,000 keys with ids like 100042, names and hash tables included: `used_memory` in Redis, the heap after a collection in the process.",
	contenders: []string{
		"in Redis, a value of 200 bytes", "in Redis, a null", "in Redis, a lease", "in Redis, a hold",
		"in the process, a value of 200 bytes", "in the process, a struct", "in the process, a null",
	},
	reference: "in Redis, a value of 200 bytes",
	columns:   []column{share("bytes", "%.0f", "bytes", "keys", false)},
	run:       priceMemory,
}

const firstKey = 100_000

func priceMemory(ctx context.Context, p *process) error {
	n := pick(p.Size, 1000, 50_000, 50_000)
	used := func() (float64, error) { return askServer(p.stats, "used_memory") }
	inProcess := func() (float64, error) { return float64(heap()), nil }
	switch p.Contender {
	case "in Redis, a value of 200 bytes":
		return withReader(p, raw, p.Redis, 0, 0, func(r reader[[]byte]) error {
			return p.growth(n, used, func(from, n int) error { return fill(ctx, r, keysFrom(firstKey+from, n)) })
		})
	case "in Redis, a null": // which comes there with the second miss
		return withReader(p, raw, p.Redis, 0, 1, func(r reader[[]byte]) error {
			return p.growth(n, used, func(from, n int) error {
				return errors.Join(p.askAbsent(ctx, r, from, n), p.askAbsent(ctx, r, from, n))
			})
		})
	case "in Redis, a lease":
		rdb := redis.NewClient(&redis.Options{Addr: p.Redis})
		defer rdb.Close()
		group, err := fleet.New(rdb, fleet.Keyspace{Name: "bench"}, fleet.Options{Lease: time.Minute}, fleet.Messages{})
		if err != nil {
			return err
		}
		defer group.Close()
		return p.growth(n, used, func(from, n int) error { return beginAll(ctx, group, firstKey+from, n) })
	case "in Redis, a hold": // while a transaction runs
		return withReader(p, raw, p.Redis, 0, 0, func(r reader[[]byte]) error {
			write := func(from int, tx func(context.Context) error) error {
				return r.(leveeReader[[]byte]).Write(ctx, keysFrom(firstKey+from, n), tx)
			}
			return write(0, func(context.Context) error {
				before, err := used()
				if err != nil {
					return err
				}
				return write(n, func(context.Context) error {
					after, err := used()
					p.count("bytes", after-before)
					p.count("keys", float64(n))
					return err
				})
			})
		})
	case "in the process, a value of 200 bytes":
		return withReader(p, raw, "", 4*n, 0, func(r reader[[]byte]) error {
			return p.growth(n, inProcess, func(from, n int) error { return fill(ctx, r, keysFrom(firstKey+from, n)) })
		})
	case "in the process, a struct":
		return withReader(p, structs, "", 4*n, 0, func(r reader[product]) error {
			return p.growth(n, inProcess, func(from, n int) error { return fill(ctx, r, keysFrom(firstKey+from, n)) })
		})
	}
	n = min(n, 5000) // what the nulls' own budget has room for, twice
	return withReader(p, raw, "", 4*n, 1, func(r reader[[]byte]) error {
		return p.growth(n, inProcess, func(from, n int) error { return p.askAbsent(ctx, r, from, n) })
	})
}

func withReader[V any](p *process, kind kind[V], redis string, capacity, rows int, do func(reader[V]) error) error {
	source := source[V]{kind: kind, rows: rows}
	r, err := openReader(opening[V]{contender: "levee", redis: redis, load: source.load, kind: kind, capacity: capacity})
	if err != nil {
		return err
	}
	defer r.Close()
	return do(r)
}

func (p *process) askAbsent(ctx context.Context, r reader[[]byte], from, n int) error {
	absent := keysFrom(firstKey+from, n)
	return p.inTurn(64, n, func(i int) error {
		if _, err := r.Get(ctx, absent[i]); !errors.Is(err, errAbsent) {
			return fmt.Errorf("%s: %w", absent[i], err)
		}
		return nil
	})
}

// beginAll takes the leases of n ids, 256 in a call.
func beginAll(ctx context.Context, group *fleet.Group, from, n int) error {
	for i := 0; i < n; i += 256 {
		var asks []fleet.Ask
		for id := i; id < min(i+256, n); id++ {
			asks = append(asks, fleet.Ask{ID: strconv.Itoa(firstKey + from + id)})
		}
		for _, grant := range group.Begin(ctx, asks...) {
			if grant.Verdict != fleet.Granted {
				return fmt.Errorf("a lease was not granted: %v", grant.Verdict)
			}
		}
	}
	return nil
}

// growth adds n keys, so that tables have been made, and counts what the next n take.
func (p *process) growth(n int, used func() (float64, error), add func(from, n int) error) error {
	if err := add(0, n); err != nil {
		return err
	}
	before, err := used()
	if err == nil {
		err = add(n, n)
	}
	if err != nil {
		return err
	}
	after, err := used()
	p.count("bytes", after-before)
	p.count("keys", float64(n))
	return err
}
