package localcache

import "math"

// Stats is a snapshot of the counters since New. Calls after Close are not counted.
type Stats struct {
	// Every Get ended as one of these.
	Hits, Nulls, Misses uint64

	// Every Fill, FillNull and Put ended as one of these: taken, dropped because a
	// deletion had overtaken its mark, or not taken for another reason.
	Filled, Outdated, Refused uint64

	Deletes, Flushes uint64 // calls

	// Entries that were taken and then pushed out by others, or not kept at all
	// because others were wanted more.
	Evicted, Rejected uint64

	// Size of all entries, in bytes, with dead ones and those in ristretto's queue.
	Bytes, NullBytes int64

	Distrusted bool // by Trust(false)
}

// Stats returns the counters. While other calls run, the counters are not all of the
// same moment.
func (c *Cache[K, V]) Stats() Stats {
	if c == nil {
		return Stats{}
	}
	s := Stats{
		Hits:       c.calls.count(hit) + c.calls.fronted(),
		Nulls:      c.calls.count(null),
		Misses:     c.calls.count(miss),
		Filled:     c.calls.count(filled),
		Outdated:   c.calls.count(outdated),
		Refused:    c.calls.count(refused),
		Deletes:    c.deletes.Load(),
		Flushes:    c.flushes.Load(),
		Evicted:    c.values.evicted.Load(),
		Rejected:   c.values.rejected.Load(),
		Bytes:      c.values.used.Load(),
		Distrusted: c.maxAge.Load() != math.MaxInt64,
	}
	if c.nulls != nil {
		s.Evicted += c.nulls.evicted.Load()
		s.Rejected += c.nulls.rejected.Load()
		s.NullBytes = c.nulls.used.Load()
	}
	return s
}
