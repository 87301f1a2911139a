package bloom

import (
	"math"
	"sync/atomic"
)

// A generation is the filter from one Rebuild to the next.
type generation struct {
	spread    spread
	table     table
	limit     uint64      // set positions above which it is saturated
	saturated atomic.Bool // written only when it changes

	_   [64]byte // what Adds write stays off the lines that every read needs
	set atomic.Uint64
}

func newGeneration(o Options, k key, number uint64) *generation {
	size, hashes := o.size()
	return &generation{
		spread: newSpread(k, number, size, hashes),
		table:  newTable(size, o.Counting),
		limit:  limit(o.MaxFalsePositiveRate, size, hashes),
	}
}

// limit is how many positions are set when the estimated rate reaches p: an
// absent id passes if all its positions are set.
func limit(p float64, size uint64, hashes int) uint64 {
	if p < 0 {
		return size
	}
	return uint64(math.Pow(p, 1/float64(hashes)) * float64(size))
}

// contains never misses what was added before it began.
func (g *generation) contains(h hash) bool {
	w := g.spread.start(h)
	for range g.spread.hashes {
		if !g.table.has(w.next(&g.spread)) {
			return false
		}
	}
	return true
}

func (g *generation) add(h hash) {
	fresh := uint64(0)
	w := g.spread.start(h)
	for range g.spread.hashes {
		if g.table.set(w.next(&g.spread)) {
			fresh++
		}
	}
	if fresh > 0 {
		g.filled(g.set.Add(fresh))
	}
}

// remove takes an id out of a counting generation, unless it surely is not in it.
func (g *generation) remove(h hash) {
	if !g.contains(h) {
		return
	}
	cleared := uint64(0)
	w := g.spread.start(h)
	for range g.spread.hashes {
		if g.table.unset(w.next(&g.spread)) {
			cleared++
		}
	}
	if cleared > 0 {
		g.filled(g.set.Add(-cleared))
	}
}

func (g *generation) filled(set uint64) {
	if full := set > g.limit; full != g.saturated.Load() {
		g.saturated.Store(full)
	}
}

func (g *generation) fill() float64 { return float64(g.set.Load()) / float64(g.spread.size) }
