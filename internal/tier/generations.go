package tier

import (
	"hash/maphash"
	"sync/atomic"
)

// generations counts the deletions: of each stripe of ids, and of everything. The
// generation of a stripe is the sum of the two counts. As neither goes back, the
// sum is the same only if both are, even if a deletion falls between the two reads.
//
// The counts have 32 bits, so that the table stays in the processor's cache. A number
// returns after 4 billion deletions; an old entry would count again only if it
// lived through exactly that many.
type generations struct {
	seed   maphash.Seed
	all    atomic.Uint32 // starts at 1, so that the zero Mark is never current
	stripe []atomic.Uint32
}

// A small cache has few stripes, since the table of many takes 256 KiB: a deletion, also one that another
// process announces, then ends one in 16,384 of the cache's entries besides.
const (
	stripes, fewStripes = 1 << 16, 1 << 14
	small               = 8 << 20 // bytes
)

func newGenerations(maxBytes int64) *generations {
	n := stripes
	if maxBytes < small {
		n = fewStripes
	}
	g := &generations{seed: maphash.MakeSeed(), stripe: make([]atomic.Uint32, n)}
	g.all.Store(1)
	return g
}

func (g *generations) stripeOf(id string) uint16 { return g.fold(maphash.String(g.seed, id)) }

// fold returns the stripe of a hash.
func (g *generations) fold(hash uint64) uint16 { return uint16(hash & uint64(len(g.stripe)-1)) }

func (g *generations) now(stripe uint16) uint32 {
	return g.stripe[stripe].Load() + g.all.Load()
}

// bump raises the generation of the stripe and returns the new one.
func (g *generations) bump(stripe uint16) uint32 {
	return g.stripe[stripe].Add(1) + g.all.Load()
}

func (g *generations) bumpAll() { g.all.Add(1) }
