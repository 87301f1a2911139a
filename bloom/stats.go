package bloom

import (
	"math"
	"time"
)

// Stats is a snapshot of a Filter.
type Stats struct {
	Capacity uint64 // ids it is sized for
	Bytes    uint64 // of its table; a Rebuild takes as many again
	Hashes   int    // positions of an id

	Adds     uint64 // ids given to Add
	Removes  uint64 // ids given to Remove
	Rebuilds uint64 // that have succeeded

	Fill              float64 // share of the positions that are set
	FalsePositiveRate float64 // estimated from Fill: the share of absent ids that pass
	Ids               uint64  // estimated from Fill: different ids in it

	Complete   bool // a Rebuild has succeeded, or Options.Complete
	Saturated  bool // the rate is above MaxFalsePositiveRate
	Abstaining bool // says yes to everything
	Rebuilding bool // in this process

	// Of a shared filter only.
	Loads uint64        // how often its table was loaded from Redis
	Lag   time.Duration // how far it may be behind Redis; above MaxLag it abstains
}

// Stats takes a snapshot. It waits for nothing but a switch between generations.
func (f *Filter) Stats() Stats {
	if f == nil {
		return Stats{Abstaining: true}
	}
	if f.shared != nil {
		return f.shared.stats()
	}
	s := Stats{
		Capacity: f.o.Capacity,
		Adds:     f.adds.Load(),
		Removes:  f.removes.Load(),
		Rebuilds: f.rebuilds.Load(),
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	g := f.current
	s.Rebuilding = f.turn != nil
	s.Complete = g != nil && f.answering.Load() == g
	s.Saturated = g != nil && g.saturated.Load()
	s.Abstaining = !s.Complete || s.Saturated
	if g == nil {
		return s
	}
	s.describe(g)
	return s
}

func (s *Stats) describe(g *generation) {
	s.Bytes, s.Hashes = g.table.bytes(), g.spread.hashes
	s.Fill = g.fill()
	s.FalsePositiveRate = g.rate()
	s.Ids = g.ids()
}

// rate estimates the share of absent ids that pass.
func (g *generation) rate() float64 { return math.Pow(g.fill(), float64(g.spread.hashes)) }

// ids estimates how many different ids have set the positions that are set
// (Swamidass and Baldi, 2007).
func (g *generation) ids() uint64 {
	size, set := float64(g.spread.size), float64(g.set.Load())
	if set >= size { // all: any number may have
		set = size - 1
	}
	return uint64(math.Round(-size / float64(g.spread.hashes) * math.Log1p(-set/size)))
}
