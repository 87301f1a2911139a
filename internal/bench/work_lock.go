package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

var lockContenders = []string{"levee", "redislock", "redsync", "rueidislock", "BLPOP"}

var lockFree = workload{
	name:       "lock-free",
	title:      "G. A free lock, taken and given back",
	about:      "One goroutine; microseconds for both together. BLPOP is a token in a list, which nobody gives back for a holder that dies.",
	contenders: lockContenders,
	reference:  "redislock",
	columns: []column{
		quantile("p50 µs", "%.0f", "pair", 0.5, 1, true),
		quantile("p99 µs", "%.0f", "pair", 0.99, 1, false),
		share("round trips", "%.2f", "trips", "pairs", false),
		share("allocations", "%.0f", "allocs", "pairs", false),
	},
	run: func(ctx context.Context, p *process) error {
		l, err := openLocker(p.Contender, p.Redis)
		if err != nil {
			return err
		}
		defer l.Close()
		n := pick(p.Size, 50, 2000, 5000)
		times := make([]time.Duration, 0, n)
		var before, allocs float64
		for i := -20; i < n; i++ { // the first connect
			if i == 0 {
				if before, err = p.trips(); err != nil {
					return err
				}
				allocs = mallocs()
			}
			began := time.Now()
			unlock, err := l.Lock(ctx, "lock")
			if err == nil {
				err = unlock()
			}
			if err != nil {
				return err
			}
			if i >= 0 {
				times = append(times, time.Since(began))
			}
		}
		p.count("allocs", mallocs()-allocs)
		after, err := p.trips()
		p.took("pair", times...)
		p.count("pairs", float64(n))
		p.count("trips", after-before)
		return err
	},
}

const (
	lockCallers = 64
	patience    = 30 * time.Second // with what comes at once on a machine that is not busy
)

var lockContended = workload{
	name:  "lock-contended",
	title: "G. One lock that many want",
	about: "Two processes of 64 goroutines want one lock and hold it for a millisecond, in which each checks that it is alone. " +
		"redislock tries again every 100 ms, redsync every 50 to 250 ms, as is its default. Jain's index is 1 if all got the lock as often, 1/128 if one got it always. " +
		"Round trips beside those of the check.",
	contenders: lockContenders,
	reference:  "BLPOP",
	processes:  2,
	columns: []column{
		counted("acquired/s", "%.0f", "rate", true),
		share("round trips", "%.1f", "trips", "acquired", false),
		{"Jain", "%.3f", false, func(r report) float64 {
			return r.Counts["acquired"] * r.Counts["acquired"] / (r.Counts["squares"] * r.Counts["callers"])
		}},
		quantile("wait p50 (ms)", "%.0f", "wait", 0.5, 1000, false),
		quantile("longest (s)", "%.2f", "wait", 1, 1e6, false),
	},
	run: func(ctx context.Context, p *process) error {
		l, err := openLocker(p.Contender, p.Redis)
		if err != nil {
			return err
		}
		defer l.Close()
		alone := redis.NewClient(&redis.Options{Addr: p.Direct})
		defer alone.Close()
		span := pick(p.Size, 300*time.Millisecond, 2*time.Second, 8*time.Second)
		before, err := p.trips()
		if err := errors.Join(err, p.meet()); err != nil {
			return err
		}
		if err := errors.Join(contend(ctx, p, l, alone, span), p.meet()); err != nil {
			return err
		}
		p.count("callers", lockCallers)
		if p.Process > 0 {
			return nil
		}
		after, err := p.trips()
		p.count("trips", after-before)
		return err
	},
}

// contend has callers want the lock until span is over.
func contend(ctx context.Context, p *process, l locker, alone *redis.Client, span time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, span+patience)
	defer cancel()
	var all sync.WaitGroup
	var had atomic.Int64
	errs := make([]error, lockCallers)
	began := time.Now()
	for i := range errs {
		all.Go(func() {
			if errs[i] = wantLock(ctx, p, l, alone, &had); errs[i] != nil {
				cancel()
			}
		})
	}
	time.Sleep(span)
	// On a busy machine the first may take longer, and nothing is known of a lock that nobody had.
	_ = until(patience, func() bool { return had.Load() > 0 || ctx.Err() != nil })
	cancel()
	took := time.Since(began)
	all.Wait()
	p.count("rate", float64(had.Load())/took.Seconds())
	return errors.Join(errs...)
}

// wantLock takes the lock again and again until ctx ends. It adds to had.
func wantLock(ctx context.Context, p *process, l locker, alone *redis.Client, had *atomic.Int64) error {
	const marker = "holders"
	n := 0.0
	var waits []time.Duration
	for ctx.Err() == nil {
		began := time.Now()
		unlock, err := l.Lock(ctx, "lock")
		waits = append(waits, time.Since(began))
		if err != nil && ctx.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		n++
		had.Add(1)
		holders, err := alone.Incr(context.Background(), marker).Result()
		if err == nil && holders != 1 {
			err = fmt.Errorf("%d hold the lock", holders)
		}
		time.Sleep(time.Millisecond)
		err = errors.Join(err, alone.Decr(context.Background(), marker).Err())
		if err := errors.Join(err, unlock()); err != nil {
			return err
		}
	}
	p.took("wait", waits...)
	p.count("acquired", n)
	p.count("squares", n*n)
	p.count("trips", -2*n) // of the check
	return nil
}

var lockWaiters = workload{
	name:       "lock-waiters",
	title:      "G. 2,000 wait for one lock",
	about:      "Over ten clients of one process; whoever gets the lock gives it on at once. It ends when all have had it, or after a while (8 s, with -short 4 s).",
	contenders: []string{"levee", "redislock", "redsync", "rueidislock"},
	reference:  "levee",
	columns: []column{
		counted("served", "%.0f", "acquired", false),
		counted("acquired/s", "%.0f", "rate", true),
		share("round trips", "%.1f", "trips", "acquired", false),
		counted("longest without (ms)", "%.0f", "gap", false),
	},
	run: func(ctx context.Context, p *process) error {
		lockers := make([]locker, 10)
		for i := range lockers {
			l, err := openLocker(p.Contender, p.Redis)
			if err != nil {
				return err
			}
			defer l.Close()
			lockers[i] = l
		}
		gate, err := lockers[0].Lock(ctx, "lock")
		if err != nil {
			return err
		}
		h := herd{p: p, n: pick(p.Size, 20, 1000, 2000), patience: pick(p.Size, patience, 4*time.Second, 8*time.Second)}
		return h.run(ctx, lockers, gate)
	},
}

// A herd is many who wait for one lock.
type herd struct {
	p        *process
	n        int
	patience time.Duration

	mu       sync.Mutex // guards what follows
	acquired int
	last     time.Time     // that somebody had the lock
	gap      time.Duration // the longest in which nobody did
}

// run has the herd wait, opens the gate, and reports what happens.
func (h *herd) run(ctx context.Context, lockers []locker, gate func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	errs := make(chan error, h.n)
	for i := range h.n {
		all.Go(func() {
			if unlock, err := lockers[i%len(lockers)].Lock(ctx, "lock"); err == nil {
				h.served()
				errs <- unlock()
			}
		})
	}
	time.Sleep(time.Duration(h.n) * 200 * time.Microsecond) // it does not matter if some come a little late
	before, err := h.p.trips()
	h.last = time.Now()
	began := h.last
	if err := errors.Join(err, gate()); err != nil {
		return err
	}
	over := time.AfterFunc(h.patience, cancel)
	defer over.Stop()
	all.Wait()
	took := time.Since(began)
	after, err := h.p.trips()
	close(errs)
	for failed := range errs {
		err = errors.Join(err, failed)
	}
	h.p.count("acquired", float64(h.acquired))
	h.p.count("rate", float64(h.acquired)/took.Seconds())
	h.p.count("trips", after-before)
	h.p.count("gap", float64(h.gap.Milliseconds()))
	return err
}

func (h *herd) served() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.acquired++
	h.gap, h.last = max(h.gap, now.Sub(h.last)), now
}
