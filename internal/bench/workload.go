package main

import (
	"context"
	"slices"
	"time"
)

// A workload is one way to use a cache, a lock or a filter.
type workload struct {
	name       string
	title      string
	about      string   // what happens, in a sentence or two
	contenders []string // the first is levee; of prices, what is priced
	reference  string   // whose figures the ratios refer to
	processes  int      // of a contender at a time; 0: one
	columns    []column
	// run is the work of one process. It checks what the contender answers, and returns an
	// error if an answer is wrong.
	run func(ctx context.Context, p *process) error
}

// prices are workloads that have no contenders: they measure what levee and Redis take for what they do. They run
// only if they are asked for. docs/internals/scaling.md is made from them, see internal/scale.
var prices = []workload{operations, publish, flow, commands, memory}

// A column is a figure of a workload's table.
type column struct {
	name   string
	format string // of the figure
	ratio  bool   // show its ratio to the reference's figure of the same round
	of     func(r report) float64
}

var workloads = []workload{
	localBytes, localStruct, footprint,
	hitBytes, hitStruct, arrivals,
	coldKey, coldKeys,
	nulls, expiry, race, batches,
	lockFree, lockContended, lockWaiters, filters,
}

func findWorkload(name string) (workload, bool) {
	all := slices.Concat(workloads, prices, hitRatios)
	i := slices.IndexFunc(all, func(w workload) bool { return w.name == name })
	if i < 0 {
		return workload{}, false
	}
	return all[i], true
}

// A size says how much a run does.
type size int

const (
	tiny  size = iota // for tests: proves nothing but that it works
	small             // -short
	full
)

// pick returns the number for the size of this run.
func pick[T int | time.Duration](s size, forTests, forShort, forFull T) T {
	return [...]T{tiny: forTests, small: forShort, full: forFull}[s]
}

// counted is a column of a count, summed over the processes.
func counted(name, format, count string, ratio bool) column {
	return column{name, format, ratio, func(r report) float64 { return r.Counts[count] }}
}

// share is a column of one count divided by another.
func share(name, format, count, by string, ratio bool) column {
	return column{name, format, ratio, func(r report) float64 { return r.Counts[count] / r.Counts[by] }}
}

// quantile is a column of a quantile of times, in microseconds divided by unit.
func quantile(name, format, times string, q, unit float64, ratio bool) column {
	return column{name, format, ratio, func(r report) float64 { return r.quantile(times, q) / unit }}
}
