package mutexrebuild

import "sync/atomic"

// Stats counts what a group has done since it was made.
type Stats struct {
	Loads       uint64 // loaders run
	LoadErrors  uint64 // of which ended in an error, a panic or a timeout
	Held        uint64 // callers answered by a held error
	HeldOff     uint64 // loads not published because a writer held the key
	Refused     uint64 // publications refused because the key had been invalidated
	Unpublished uint64 // values that could not be stored, by their size or TTL
	Unfit       uint64 // bytes in Redis that were no value of their key
	Unknown     uint64 // operations without an answer from Redis, or not begun
	Degraded    uint64 // loads without a lease
	Waits       uint64 // waits for the lease of another process
	Wakes       uint64 // of which ended by a message
	Polls       uint64 // of which ended by the safety net
	GaveUp      uint64 // of which ended with the wait budget
	Spared      uint64 // flights whose load failed, and callers who left, with a Spare
	Refreshes   uint64 // begun
	Refreshed   uint64 // of which brought a new value

	Outages uint64 // how often Redis was given up, until it answered again
	Outage  bool   // it is given up now: nothing but one read at a time asks it

	Unconfirmed int    // invalidations that wait for Redis to confirm them
	Queued      uint64 // invalidations that Redis did not confirm at once
	Retried     uint64 // of which it confirmed later, unasked
	Dropped     uint64 // invalidations given up, for lack of room or by Close
}

type counters struct {
	loads, loadErrors, held, heldOff, refused, unpublished, unfit,
	unknown, degraded, waits, wakes, polls, gaveUp,
	spared, refreshes, refreshed atomic.Uint64
}

// Stats returns a snapshot of the counters. They are read one after another, so
// they may be apart by what happens meanwhile.
func (g *Group[T]) Stats() Stats {
	c := &g.counts
	s := Stats{
		Loads: c.loads.Load(), LoadErrors: c.loadErrors.Load(),
		Held: c.held.Load(), HeldOff: c.heldOff.Load(),
		Refused: c.refused.Load(), Unpublished: c.unpublished.Load(), Unfit: c.unfit.Load(),
		Unknown: c.unknown.Load(), Degraded: c.degraded.Load(),
		Waits: c.waits.Load(), Wakes: c.wakes.Load(), Polls: c.polls.Load(), GaveUp: c.gaveUp.Load(),
		Spared: c.spared.Load(), Refreshes: c.refreshes.Load(), Refreshed: c.refreshed.Load(),
	}
	if g.store != nil {
		s.Outages, s.Outage = g.store.gate.outages.Load(), g.store.gate.shut()
		q := g.store.queue
		s.Unconfirmed = q.length()
		s.Queued, s.Retried, s.Dropped = q.queued.Load(), q.retried.Load(), q.dropped.Load()
	}
	return s
}
