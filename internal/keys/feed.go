package keys

// Names of a change feed's keys. Both are in one cluster slot.
//
//	levee:f1:{name}            how far the fleet has followed it
//	levee:f1:levee:l1:m:{name} the lock of the process that follows it, a mutex
//
// The f1 is the version of the layout.

// FeedLocks is the prefix of the locks of processes that follow feeds: it keeps them
// apart from the locks of users.
const FeedLocks = "levee:f1"

// Feed names the record of the feed called name.
func Feed(name string) string { return "levee:f1:{" + escape(name) + "}" }
