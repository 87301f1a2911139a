package bloom

import (
	"math"
	"sync/atomic"
)

// A generation is the table from one Rebuild to the next.
type generation struct {
	spread    spread
	table     table
	limit     uint64      // saturated: more positions than this are set
	saturated atomic.Bool // written only when it changes

	_   [64]byte      // keeps what Adds write off the cache lines that every read needs
	set atomic.Uint64 // positions
}

func newGeneration(o Options, k key, number uint64) *generation {
	size, hashes := o.size()
	return &generation{
		spread: newSpread(k, number, size, hashes),
		table:  newTable(size, o.Counting),
		limit:  limit(o.MaxFalsePositiveRate, size, hashes),
	}
}

// limit returns how many positions are set when the estimated rate reaches p. An
// absent id passes if all its positions are set.
func limit(p float64, size uint64, hashes int) uint64 {
	if p < 0 {
		return size
	}
	return uint64(math.Pow(p, 1/float64(hashes)) * float64(size))
}

// contains reports whether all positions of an id are set. It says yes to every id that
// was added before it began.
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

// remove takes an id out of a counting generation, unless a position of it is clear: then
// the id is not in.
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

// filled notes how many positions are set.
func (g *generation) filled(set uint64) {
	if full := set > g.limit; full != g.saturated.Load() {
		g.saturated.Store(full)
	}
}

func (g *generation) fill() float64 { return float64(g.set.Load()) / float64(g.spread.size) }
