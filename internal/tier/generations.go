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
	stripe [1 << 16]atomic.Uint32
}

func newGenerations() *generations {
	g := &generations{seed: maphash.MakeSeed()}
	g.all.Store(1)
	return g
}

func (g *generations) stripeOf(id string) uint16 { return uint16(maphash.String(g.seed, id)) }

func (g *generations) now(stripe uint16) uint32 {
	return g.stripe[stripe].Load() + g.all.Load()
}

// bump raises the generation of the stripe and returns the new one.
func (g *generations) bump(stripe uint16) uint32 {
	return g.stripe[stripe].Add(1) + g.all.Load()
}

func (g *generations) bumpAll() { g.all.Add(1) }
