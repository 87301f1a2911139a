package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// loadTime is what the source of the stampedes takes for a load, whatever else it does.
const loadTime = 50 * time.Millisecond

var stampedeContenders = []string{"levee", "rockscache", "rockscache 10 ms", "go-redis/cache", "go-zero", "go-redis GET", "sturdyc", "otter"}

var coldKey = workload{
	name:  "cold-key",
	title: "C. One cold key, 4 processes × 256 callers",
	about: "All callers ask at once for a key that is nowhere; a load takes 50 ms. Loads, round trips to Redis and milliseconds beyond the load's, for a key. " +
		"Contenders without a lease load once in each process, or once for each caller.",
	contenders: stampedeContenders,
	reference:  "rockscache 10 ms",
	processes:  4,
	columns:    stampedeColumns,
	run: func(ctx context.Context, p *process) error {
		s, err := newStampede(p)
		if err != nil {
			return err
		}
		defer s.reader.Close()
		var sets [][]string
		for i := range pick(p.Size, 2, 8, 20) {
			sets = append(sets, keysFrom(100+i, 1))
		}
		return s.run(ctx, sets, pick(p.Size, 16, 256, 256))
	},
}

var coldKeys = workload{
	name:  "cold-keys",
	title: "C. 500 cold keys at once, 4 processes",
	about: "In each process two callers for each of 500 keys that are nowhere ask at once, as after a deployment with an empty Redis; a load takes 50 ms, however many run. " +
		"By default levee lets 64 of them run at a time in a process; \"levee unlimited\" does as the others do. The rest as above.",
	contenders: append([]string{"levee unlimited"}, stampedeContenders...),
	reference:  "rockscache 10 ms",
	processes:  4,
	columns:    stampedeColumns,
	run: func(ctx context.Context, p *process) error {
		s, err := newStampede(p)
		if err != nil {
			return err
		}
		defer s.reader.Close()
		n := pick(p.Size, 20, 500, 500)
		var sets [][]string
		for i := range pick(p.Size, 1, 1, 3) {
			sets = append(sets, keysFrom(1000*(i+1), n))
		}
		return s.run(ctx, sets, 2)
	},
}

var stampedeColumns = []column{
	share("loads", "%.2f", "loads", "keys", false),
	share("failed", "%.0f", "failed", "one", false),
	quantile("p50, +ms", "%.1f", "over", 0.5, 1000, false),
	quantile("p99, +ms", "%.1f", "over", 0.99, 1000, true),
	share("round trips", "%.1f", "trips", "keys", true),
}

// A stampede has many callers ask for cold keys at once, in each process of the run.
type stampede struct {
	p      *process
	source source[[]byte]
	reader reader[[]byte]
}

func newStampede(p *process) (s *stampede, err error) {
	s = &stampede{p: p, source: source[[]byte]{kind: raw, takes: loadTime}}
	s.reader, err = openReader(opening[[]byte]{contender: p.Contender, redis: p.Redis, load: s.source.load, kind: raw, capacity: 10_000})
	return s, err
}

// run asks for the sets of keys one after the other, each key by so many callers of each process at once.
func (s *stampede) run(ctx context.Context, sets [][]string, callers int) error {
	if err := s.ask(ctx, keysFrom(0, 2), 2, nil); err != nil { // the scripts are known, there is a connection
		return err
	}
	loads := s.source.loads.Load()
	trips, err := s.trips()
	if err != nil {
		return err
	}
	var failed atomic.Int64
	for _, keys := range sets {
		if err := s.ask(ctx, keys, callers, &failed); err != nil {
			return err
		}
		s.p.count("keys", float64(len(keys))/float64(s.p.Processes))
	}
	before := trips
	if trips, err = s.trips(); err != nil {
		return err
	}
	s.p.count("trips", trips-before)
	s.p.count("loads", float64(s.source.loads.Load()-loads))
	s.p.count("failed", float64(failed.Load()))
	s.p.count("one", 1/float64(s.p.Processes))
	return nil
}

// trips returns what Redis has counted, in the first of the processes.
func (s *stampede) trips() (float64, error) {
	if err := s.p.meet(); err != nil || s.p.Process > 0 {
		return 0, err
	}
	return s.p.trips()
}

// ask has callers for each key ask at once. Without a count of failures it warms up, and none may fail.
func (s *stampede) ask(ctx context.Context, keys []string, callers int, failures *atomic.Int64) error {
	times := make([]time.Duration, len(keys)*callers) // 0: failed
	errs := make(chan error, len(times))
	var ready, all sync.WaitGroup
	begin := make(chan struct{})
	ready.Add(len(times))
	for i := range times {
		key := keys[i%len(keys)]
		all.Go(func() {
			ready.Done()
			<-begin
			asked := time.Now()
			v, err := s.reader.Get(ctx, key)
			took := time.Since(asked) - loadTime
			switch {
			case err != nil && failures != nil:
				failures.Add(1)
			case !raw.right(v, err, idOf(key)):
				errs <- raw.wrong(v, err, idOf(key))
			default:
				times[i] = took
			}
		})
	}
	ready.Wait()
	if err := s.p.meet(); err != nil {
		return err
	}
	close(begin)
	all.Wait()
	if failures != nil {
		s.p.took("over", slices.DeleteFunc(times, func(t time.Duration) bool { return t == 0 })...)
	}
	if len(errs) > 0 {
		return fmt.Errorf("%d wrong answers: %w", len(errs), <-errs)
	}
	return nil
}
