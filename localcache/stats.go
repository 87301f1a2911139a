package localcache

import "math"

// Stats is a snapshot of the counters since New. Calls after Close are not counted.
type Stats struct {
	// Every Get ended as one of these.
	Hits, Nulls, Misses uint64

	// Every Fill, FillNull and Put ended as one of these: taken, dropped
	// because its mark was overtaken, or not taken for another reason.
	Filled, Outdated, Refused uint64

	Deletes, Flushes uint64 // calls

	// What became of entries that were taken: pushed out by others, or not
	// kept at all because others were wanted more.
	Evicted, Rejected uint64

	// What the entries take, in bytes, dead ones and those on their way in as well.
	Bytes, NullBytes int64

	Distrusted bool
}

// Stats returns the counters. While calls are under way, they are not all of
// one moment.
func (c *Cache[K, V]) Stats() Stats {
	if c == nil {
		return Stats{}
	}
	s := Stats{
		Hits:       c.gate.count(hit) + c.gate.fronted(),
		Nulls:      c.gate.count(null),
		Misses:     c.gate.count(miss),
		Filled:     c.gate.count(filled),
		Outdated:   c.gate.count(outdated),
		Refused:    c.gate.count(refused),
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
