package localcache

// Stats is a snapshot of the counters since New. Calls after Close are not counted.
type Stats struct {
	// Every Get ended as one of these. Nulls are of a cache.Cache.
	Hits, Nulls, Misses uint64

	// Every Fill and Set ended as one of these: taken, dropped because a deletion had overtaken
	// it, or not taken for another reason.
	Filled, Outdated, Refused uint64

	Deletes, Flushes uint64 // calls of Delete and of Clear

	// Entries that were taken and then pushed out by others, or not kept at all
	// because others were wanted more.
	Evicted, Rejected uint64

	// Size of all entries, in bytes, with dead ones and those in ristretto's queue.
	Bytes, NullBytes int64

	Distrusted bool // of a cache.Cache: no messages arrive, and DistrustTTL counts
}
