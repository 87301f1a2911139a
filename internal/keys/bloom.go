package keys

import "strconv"

// Names of a shared filter. Everything of one filter is in one cluster slot, that
// of its name.
//
//	levee:b1:{name}              its record
//	levee:b1:{name}:log          the newest adds
//	levee:b1:{name}:rebuild      the lease of the process that rebuilds it
//	levee:b1:{name}:g:<gen>      what the pieces of a generation add up to
//	levee:b1:{name}:g:<gen>:<i>  its i-th piece, a bitmap
//	levee:b1:{name}:g:<gen>:c<i> the counters of that piece, if the filter counts
//	levee:b1:{name}:tickets      what Removes have still to be done
//	levee:bloom:1:name           the channel on which adds are announced
//
// The b1 is the version of the layout.

// A Filter makes the names of one filter. Filters of different names have
// different ones, whatever bytes the names have.
type Filter struct{ record, channel string }

// BloomFilter is the names of the filter called name.
func BloomFilter(name string) Filter {
	return Filter{"levee:b1:{" + escape(name) + "}", "levee:bloom:1:" + name}
}

// Record names what says which generation is in use.
func (f Filter) Record() string { return f.record }

// Log names the stream of the newest adds.
func (f Filter) Log() string { return f.record + ":log" }

// Rebuild names the lease of the process that rebuilds the filter.
func (f Filter) Rebuild() string { return f.record + ":rebuild" }

// Sums names what the pieces of a generation add up to.
func (f Filter) Sums(generation string) string { return f.record + ":g:" + generation }

// Piece names the i-th piece of a generation.
func (f Filter) Piece(generation string, i int) string {
	return f.Sums(generation) + ":" + strconv.Itoa(i)
}

// Counters names the counters of the i-th piece.
func (f Filter) Counters(generation string, i int) string {
	return f.Sums(generation) + ":c" + strconv.Itoa(i)
}

// Tickets names the set of the tickets for Removes that are not spent.
func (f Filter) Tickets() string { return f.record + ":tickets" }

// Channel names the channel on which adds are announced.
func (f Filter) Channel() string { return f.channel }
