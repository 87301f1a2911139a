package main

import (
	"math"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

// A small fleet with short lives, so that a few seconds show all that happens to a value.
var small = Fleet{
	Processes: 8, Reads: 100, Keys: 500, Zipf: 1, Writes: 20, Messages: 1, Load: 0.02,
	TTL: 1.2, LocalTTL: 0.4, StaleWhileRevalidate: 0.6, StaleIfError: 10, Jitter: 0.1, EarlyRefresh: 1, LocalKeys: 1000,
}

// fleets are small, with a change each. The last of them run only in a long test.
var fleets = []struct {
	name   string
	change func(*Fleet)
}{
	{"eight processes", func(*Fleet) {}},
	{"many writes", func(f *Fleet) { f.Writes, f.Messages = 80, 2 }},
	{"many cold keys", func(f *Fleet) { f.Keys, f.Zipf = 20_000, 0.8 }},
	{"a small tier", func(f *Fleet) { f.Keys, f.LocalKeys = 2000, 200 }},
	{"one process", func(f *Fleet) { f.Processes, f.Reads = 1, 500 }},
	{"two processes", func(f *Fleet) { f.Processes, f.Reads = 2, 300 }},
	{"no local tier", func(f *Fleet) { f.LocalKeys = 0 }},
	{"no writes", func(f *Fleet) { f.Writes = 0 }},
	{"a slow source", func(f *Fleet) { f.Load = 0.15 }}, // not so slow that fallbacks answer, which are not simulated
}

// Caches do what the simulation says. They run in bubbles, where a busy machine is not
// late.
func TestTheSimulationCountsAsCachesDo(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for _, of := range fleets[:redistest.Pick(2, len(fleets))] {
		t.Run(of.name, func(t *testing.T) {
			f := small
			of.change(&f)
			var m measured
			synctest.Test(t, func(t *testing.T) {
				server := redistest.Mini(t)
				t.Cleanup(synctest.Wait) // for what go-redis still dials behind its callers' backs
				m = f.measure(t, func() *redis.Client { return server.Client(t) })
			})
			f.compare(t, m)
		})
	}
}

// So do caches on a real Redis, on a machine with a processor to spare.
func TestTheSimulationCountsAsCachesOnARealRedisDo(t *testing.T) {
	redistest.Long(t)
	for _, of := range fleets {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel() // they wait, most of the time
			f := small
			of.change(&f)
			server := redistest.Start(t)
			f.compare(t, f.measure(t, func() *redis.Client { return server.Client(t) }))
		})
	}
}

func (f Fleet) compare(t *testing.T, m measured) {
	f.Reads, f.Writes = m.gets/float64(f.Processes), m.writes // as many as came
	s := f.Run(1)
	for _, c := range []struct {
		what                string
		measured, simulated float64
	}{
		{"reads of Redis", m.reads, s.Asks},
		{"scripts", m.scripts, s.Scripts()},
		{"loads", m.loads, s.Loads},
		{"messages", m.messages, s.Heard},
		{"stale answers", m.stale, s.Stale},
	} {
		off, allowed := c.simulated/c.measured-1, 0.1+4/math.Sqrt(c.measured*m.seconds)
		t.Logf("%-18s %8.1f/s measured, %8.1f/s simulated (%+.1f %%)", c.what, c.measured, c.simulated, 100*off)
		if !(math.Abs(off) <= allowed) {
			t.Errorf("%s are %+.1f %% off, more than %.1f %%", c.what, 100*off, 100*allowed)
		}
	}
}
