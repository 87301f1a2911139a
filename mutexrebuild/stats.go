package mutexrebuild

// Stats counts what a group has done since it was made.
type Stats struct {
	Unknown uint64 // reads, leases and publications of an id that Redis did not answer, or that were not sent
	Foreign uint64 // keys of another type that were met under the names of values, leases and the epoch, and left alone
	Refused uint64 // loads that an invalidation overtook: not published
	Waits   uint64 // waits for the lease of another process
	Wakes   uint64 // of which ended by a message
	Polls   uint64 // of which ended by looking without one
	GaveUp  uint64 // of which ended with the wait budget

	InProcess bool   // there is no Redis: the group was made without one
	Outages   uint64 // how often Redis, or a node of a cluster, was no longer called until it answered again
	Outage    bool   // it is not called now, but for one probe at a time

	Unconfirmed int    // ids whose invalidations wait for Redis, or for its replicas, to confirm them
	Queued      uint64 // invalidations that Redis did not confirm at once
	Retried     uint64 // of which it confirmed later, unasked
	Dropped     uint64 // invalidations that Close gave up, and that Redis may not have done
}
