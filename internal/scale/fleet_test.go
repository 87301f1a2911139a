package main

import (
	"maps"
	"math"
	"testing"

	"github.com/levee-go/levee/internal/redistest"
)

// A small fleet with short lives, so that a few seconds show all that happens to a value.
var small = Fleet{
	Processes: 8, Reads: 250, Keys: 500, Zipf: 1, Writes: 20, Messages: 1, Load: 0.02,
	TTL: 1.2, LocalTTL: 0.4, StaleWhileRevalidate: 0.6, StaleIfError: 10, Jitter: 0.1, EarlyRefresh: 1, LocalKeys: 1000,
}

// Caches on a real Redis, each with a client of its own as in a process of its own, do
// what the simulation says.
func TestTheSimulationCountsAsCachesDo(t *testing.T) {
	fleets := map[string]func(*Fleet){
		"eight processes": func(*Fleet) {},
		"many writes":     func(f *Fleet) { f.Writes, f.Messages = 200, 2 },
		"many cold keys":  func(f *Fleet) { f.Keys, f.Zipf = 20_000, 0.8 },
		"a small tier":    func(f *Fleet) { f.Keys, f.LocalKeys = 2000, 200 },
	}
	maps.Copy(fleets, redistest.Pick(nil, map[string]func(*Fleet){
		"one process":   func(f *Fleet) { f.Processes, f.Reads = 1, 1000 },
		"two processes": func(f *Fleet) { f.Processes, f.Reads = 2, 500 },
		"no local tier": func(f *Fleet) { f.LocalKeys = 0 },
		"no writes":     func(f *Fleet) { f.Writes = 0 },
		"a slow source": func(f *Fleet) { f.Load = 0.15 }, // not so slow that fallbacks answer, which are not simulated
	}))
	for name, change := range fleets {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait, most of the time
			f := small
			change(&f)
			m := f.measure(t)
			f.Reads, f.Writes = m.gets/float64(f.Processes), m.writes // a busy machine may be late
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
		})
	}
}
