package bloom

import "time"

// Stats is a snapshot of a Filter.
type Stats struct {
	Capacity uint64 // ids the filter is sized for; a shared one by the process that rebuilt it
	Bytes    uint64 // size of the table; a Rebuild takes as many again

	Adds     uint64 // ids given to Add
	Removes  uint64 // ids given to Remove
	Rebuilds uint64 // Rebuilds that have succeeded

	Fill              float64 // share of the positions that are set
	FalsePositiveRate float64 // estimated from Fill: the share of absent ids that pass
	Ids               uint64  // estimated from Fill: different ids in the filter

	Complete     bool // a Rebuild has succeeded, or Options.Complete
	Saturated    bool // the rate is above MaxFalsePositiveRate
	Abstaining   bool // says yes to everything
	NeedsRebuild bool // abstains until the next Rebuild: it is new, or Redis has lost it
	Rebuilding   bool // a Rebuild runs or waits in this process

	// Of a shared filter only.
	Loads uint64        // how often this process has loaded a copy of the table
	Lag   time.Duration // how far the copy may be behind Redis; above MaxLag the filter abstains
}

// stats returns the Stats of a filter that abstains.
func (c *counts) stats(o Options) Stats {
	return Stats{
		Capacity: o.Capacity, Abstaining: true,
		Adds: c.adds.Load(), Removes: c.removes.Load(), Rebuilds: c.rebuilds.Load(),
	}
}

func (s *Stats) describe(t *table) {
	s.Capacity, s.Bytes = t.capacity, t.bytes()
	s.Fill, s.FalsePositiveRate, s.Ids = t.fill(), t.rate(), t.ids()
}
