package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/keys"
)

var operations = workload{
	name:  "operations",
	title: "What an operation takes",
	about: "Values of 200 bytes, no tier in the process but for the messages. Microseconds of a processor for one operation, in Redis and in the process that asks; " +
		"round trips; the clock, for whoever waits; and the connections in the end, those for messages among them. 50 processes are caches with a client and a caller each. " +
		"The load of a miss and the transaction of a write take no time. A message is an invalidation by another process. Of 1,000 idle processes each hears its heartbeat; connections are those of all.",
	contenders: []string{
		"a hit, 1 caller", "a hit, 50 processes", "a hit, 256 callers", "a miss, 1 caller", "a miss, 50 processes", "a miss, 256 callers",
		"an invalidation, 1 caller", "an invalidation, 256 callers", "a write, 1 caller", "a write, 256 callers",
		"a message heard", "a second of an idle process",
	},
	reference: "a hit, 1 caller",
	columns: []column{
		share("Redis µs", "%.1f", "redis", "operations", false),
		share("process µs", "%.1f", "own", "operations", false),
		share("round trips", "%.2f", "trips", "operations", false),
		quantile("p50 µs", "%.0f", "took", 0.5, 1, false),
		counted("connections", "%.0f", "connections", false),
	},
	run: priceOperation,
}

func priceOperation(ctx context.Context, p *process) error {
	source := source[[]byte]{kind: raw}
	o := opening[[]byte]{contender: "levee", redis: p.Redis, load: source.load, kind: raw}
	what, by, _ := strings.Cut(p.Contender, ", ")
	if what == "a message heard" {
		o.capacity = 1 // or nobody cares for messages
	}
	r, err := openReader(o)
	if err != nil {
		return err
	}
	defer r.Close()
	levee := r.(leveeReader[[]byte])
	stored := keysOf(pick(p.Size, 100, 10_000, 10_000))
	if err := fill(ctx, r, stored); err != nil { // and open the connections
		return err
	}
	n, callers := pick(p.Size, 100, 10_000, 40_000), 1
	readers := []reader[[]byte]{r}
	switch by {
	case "256 callers":
		callers, n = 256, 5*n
	case "50 processes":
		for callers = 50; len(readers) < callers; {
			other, err := openReader(o)
			if err != nil {
				return err
			}
			defer other.Close()
			readers = append(readers, other)
		}
	}
	absent := keysFrom(len(stored), n)
	random := func() string { return stored[rand.IntN(len(stored))] }
	var do func(i int) error
	switch what {
	case "a hit":
		do = func(i int) error { return mustGet(ctx, readers[i%len(readers)], random()) }
	case "a miss":
		do = func(i int) error { return mustGet(ctx, readers[i%len(readers)], absent[i]) }
	case "an invalidation":
		do = func(int) error { return levee.Invalidate(ctx, random()) }
	case "a write":
		nothing := func(context.Context) error { return nil }
		do = func(int) error { return levee.Write(ctx, []string{random()}, nothing) }
	case "a message heard":
		return priceMessage(ctx, p, levee, n)
	case "a second of an idle process":
		return priceIdle(p, o)
	}
	return p.price(n, func() error { return p.inTurn(callers, n, do) })
}

func mustGet(ctx context.Context, r reader[[]byte], key string) error {
	v, err := r.Get(ctx, key)
	if !raw.right(v, err, idOf(key)) {
		return raw.wrong(v, err, idOf(key))
	}
	return nil
}

// inTurn calls do for the numbers below n, by so many callers.
func (p *process) inTurn(callers, n int, do func(i int) error) error {
	var next atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, callers)
	for caller := range errs {
		all.Go(func() {
			var times []time.Duration
			for errs[caller] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					break
				}
				began := time.Now()
				errs[caller] = do(i)
				times = append(times, time.Since(began))
			}
			p.took("took", times...)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// price counts what n operations take of the processors, in Redis and here.
func (p *process) price(n int, do func() error) error {
	before, err := serverNumbers(p.stats)
	if err != nil {
		return err
	}
	own := ownTime()
	if err := do(); err != nil {
		return err
	}
	own = ownTime() - own
	after, err := serverNumbers(p.stats)
	if err != nil {
		return err
	}
	p.count("operations", float64(n))
	p.count("own", float64(own.Microseconds()))
	p.count("redis", 1e6*(redisTime(after)-redisTime(before)))
	p.count("trips", after["total_reads_processed"]-before["total_reads_processed"]-1)
	p.count("connections", after["connected_clients"]-1)
	return nil
}

// priceIdle measures what caches take that nobody asks, a client each as in processes of their own.
func priceIdle(p *process, o opening[[]byte]) error {
	processes, seconds := pick(p.Size, 2, 1000, 1000), pick(p.Size, 1, 5, 10)
	for range processes {
		r, err := openReader(o)
		if err != nil {
			return err
		}
		defer r.Close()
	}
	return p.price(processes*seconds, func() error {
		time.Sleep(time.Duration(seconds) * time.Second)
		return nil
	})
}

// redisTime returns the seconds that Redis has had a processor.
func redisTime(numbers map[string]float64) float64 {
	return numbers["used_cpu_sys"] + numbers["used_cpu_user"]
}

// priceMessage measures what a process takes to hear that n ids have been invalidated, by publishing as fast as it hears.
func priceMessage(ctx context.Context, p *process, r leveeReader[[]byte], n int) error {
	sample, err := overheard(ctx, p, r)
	if err != nil {
		return err
	}
	w, err := dialWire(p.Redis)
	if err != nil {
		return err
	}
	defer w.Close()
	const batch = 100
	message := wireCommand("PUBLISH", keys.OfCache("bench").Messages(), byAnother(sample))
	messages := []byte(strings.Repeat(string(message), batch))
	deletes := r.Stats().LocalTier.Deletes
	return p.price(n/batch*batch, func() error {
		return p.inTurn(1, n/batch, func(i int) error {
			if err := w.ask(batch, messages); err != nil {
				return err
			}
			return until(10*time.Second, func() bool { return r.Stats().LocalTier.Deletes >= deletes+uint64((i+1)*batch) })
		})
	})
}

// overheard returns the message of an invalidation by r.
func overheard(ctx context.Context, p *process, r leveeReader[[]byte]) (string, error) {
	sub := p.stats.Subscribe(ctx, keys.OfCache("bench").Messages())
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		return "", err
	}
	if err := r.Invalidate(ctx, keyPrefix+"7"); err != nil {
		return "", err
	}
	m, err := sub.ReceiveMessage(ctx)
	if err != nil {
		return "", err
	}
	return m.Payload, nil
}

// byAnother returns the same message by another sender, whose first letter is another.
func byAnother(message string) string {
	other := "A"
	if message[1:2] == other {
		other = "B"
	}
	return message[:1] + other + message[2:]
}

// until looks until cond holds.
func until(within time.Duration, cond func() bool) error {
	for end := time.Now().Add(within); !cond(); time.Sleep(20 * time.Microsecond) {
		if time.Now().After(end) {
			return fmt.Errorf("waited %v in vain", within)
		}
	}
	return nil
}
