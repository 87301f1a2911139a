package keys

// Names of a shared filter. The braces put all keys of one filter into one cluster slot.
//
//	levee:b2:{name}           its record
//	levee:b2:{name}:log       the newest adds
//	levee:b2:{name}:s:<name>  the pieces of a snapshot
//	levee:b2:{name}:rebuild   the lease of the process that rebuilds it
//	levee:b2:{name}:compact   the lease of the process that writes the log into a snapshot
//	levee:bloom:2:name        the channel on which adds are announced
//
// The b2 is the version of the layout.

// A Filter makes the names of one filter's keys and channel. Filters with different
// names share none, whatever bytes the names have.
type Filter struct{ record, channel string }

// BloomFilter returns the names for the filter called name.
func BloomFilter(name string) Filter {
	return Filter{"levee:b2:{" + escape(name) + "}", "levee:bloom:2:" + name}
}

// Under returns the same names with prefix and a colon in front; "" for none. CheckPrefix must accept
// the prefix.
func (f Filter) Under(prefix string) Filter {
	return Filter{Under(prefix, f.record), Under(prefix, f.channel)}
}

// Record names the hash that says which snapshot is in use.
func (f Filter) Record() string { return f.record }

// Log names the stream of the newest adds.
func (f Filter) Log() string { return f.record + ":log" }

// Rebuild names the lease of the process that rebuilds the filter.
func (f Filter) Rebuild() string { return f.record + ":rebuild" }

// Compact names the lease of the process that writes the log into a new snapshot.
func (f Filter) Compact() string { return f.record + ":compact" }

// Pieces names the hash with the pieces of a snapshot.
func (f Filter) Pieces(snapshot string) string { return f.record + ":s:" + snapshot }

// Channel names the channel on which adds are announced.
func (f Filter) Channel() string { return f.channel }
