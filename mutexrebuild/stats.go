package mutexrebuild

import "sync/atomic"

// Stats counts what a group has done since it was made.
type Stats struct {
	Unknown uint64 // reads, leases and publications of an id that Redis did not answer, or was not asked for
	Foreign uint64 // keys of another type that were met under the names of values, leases and the epoch, and left alone
	Refused uint64 // publications refused because the key had been invalidated
	Waits   uint64 // waits for the lease of another process
	Wakes   uint64 // of which ended by a message
	Polls   uint64 // of which ended by looking without one
	GaveUp  uint64 // of which ended with the wait budget

	InProcess bool   // there is no Redis: the group was made without one
	Outages   uint64 // how often Redis, or a node of a cluster, was not asked until it answered again
	Outage    bool   // it is not asked now: one probe at a time asks it

	Unconfirmed int    // invalidations that wait for Redis to confirm them
	Queued      uint64 // invalidations that Redis did not confirm at once
	Retried     uint64 // of which it confirmed later, unasked
	Dropped     uint64 // invalidations given up, for lack of room or by Close
}

type counters struct {
	unknown, refused, waits, wakes, polls, gaveUp atomic.Uint64
}

// Stats returns a snapshot of the counters. They are read one after another, so they
// may be apart by what happens meanwhile.
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
