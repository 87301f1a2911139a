package tier

import "math"

// Stats has the fields of localcache.Stats, which documents them.
type Stats struct {
	Hits, Nulls, Misses       uint64
	Filled, Outdated, Refused uint64
	Deletes, Flushes          uint64
	Evicted, Rejected         uint64
	Bytes, NullBytes          int64
	Distrusted                bool
}

// Stats returns the counters. While other calls run, it does not read all counters at the
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
