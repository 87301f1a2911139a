package localcache

// Stats is a snapshot of the counters since New. Calls after Close are not counted.
type Stats struct {
	// Every Get ended as one of these. Only a cache.Cache has Nulls.
	Hits, Nulls, Misses uint64

	// Every Fill and Set ended as one of these: accepted, dropped because a deletion had
	// overtaken it, or not accepted for another reason.
	Filled, Outdated, Refused uint64

	Deletes, Flushes uint64 // calls of Delete and of Clear

	// Entries that were accepted and then pushed out by others, or not kept at all
	// because others were wanted more.
	Evicted, Rejected uint64

	// Size of all entries in bytes, including dead ones and those in ristretto's queue.
	Bytes, NullBytes int64

	Distrusted bool // in a cache.Cache: no messages arrive, so DistrustTTL limits the entries
}
