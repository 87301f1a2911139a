package fleet

import "sync/atomic"

// Stats has the fields of mutexrebuild.Stats, which documents them.
type Stats struct {
	Unknown uint64
	Foreign uint64
	Refused uint64
	Waits   uint64
	Wakes   uint64
	Polls   uint64
	GaveUp  uint64

	InProcess bool
	Outages   uint64
	Outage    bool

	Unconfirmed int
	Queued      uint64
	Retried     uint64
	Dropped     uint64
}

type counters struct {
	unknown, refused, waits, wakes, polls, gaveUp atomic.Uint64
}

// Stats returns a snapshot of the counters. It reads them one after another, so they may
// differ by events that happen meanwhile.
func (g *Group) Stats() Stats {
	c := &g.counts
	s := Stats{
		Unknown: c.unknown.Load(), Refused: c.refused.Load(),
		Waits: c.waits.Load(), Wakes: c.wakes.Load(), Polls: c.polls.Load(), GaveUp: c.gaveUp.Load(),
		InProcess: g.redis == nil,
	}
	if g.redis != nil {
		pending := g.redis.pending
		s.Outages, s.Outage = g.redis.conn.Outages()
		s.Foreign = g.redis.foreign.Load()
		s.Unconfirmed = pending.length()
		s.Queued, s.Retried, s.Dropped = pending.queued.Load(), pending.retried.Load(), pending.dropped.Load()
	}
	return s
}
