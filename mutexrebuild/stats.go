package mutexrebuild

// Stats counts what a group has done since it was made.
type Stats struct {
	Unknown uint64 // reads, lease requests and publications of an id that Redis did not answer, or that were not sent
	Foreign uint64 // keys of another Redis type found under the names of values, leases and the epoch, and left alone
	Refused uint64 // loads that were not published because an invalidation overtook them
	Waits   uint64 // waits for the lease of another process
	Wakes   uint64 // Waits that a message ended
	Polls   uint64 // Waits that ended by polling, without a message
	GaveUp  uint64 // Waits that ended because WaitBudget was spent

	InProcess bool   // there is no Redis: the group was made without one
	Outages   uint64 // times that levee stopped calling Redis, or a node of a cluster, until it answered again
	Outage    bool   // levee does not call it now, except for one probe at a time

	Unconfirmed int    // ids whose invalidations wait for Redis, or for its replicas, to confirm them
	Queued      uint64 // invalidations that Redis did not confirm at once
	Retried     uint64 // Queued invalidations that Redis confirmed later
	Dropped     uint64 // invalidations that Close gave up; Redis may not have made them
}
