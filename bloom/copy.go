package bloom

import (
	"sync/atomic"
	"time"
)

// A localCopy is the table from which a process answers for a shared filter. It includes the
// log up to the entry that the updater has read last, and the adds of this process, which are
// ahead of that.
type localCopy struct {
	table *table
	key   key
	shape string       // of the snapshot from which it was made, as encode writes it
	until atomic.Int64 // a no is valid before this time, on the clock of now
}

var start = time.Now()

// now returns the time of a clock that does not jump when somebody sets the time.
func now() int64 { return int64(time.Since(start)) }

// denies reports whether id is certainly not in the set.
//
// The order of the reads matters. until comes first: the bits read after it are at least
// as new. The clock comes last: a process that was stopped in between must not answer from
// old bits.
func (c *localCopy) denies(id string) bool {
	until := c.until.Load()
	return !c.table.saturated.Load() && !c.table.contains(c.key.sum(id)) && now() < until
}

// mayContainMany reports for each of ids whether it may be in the set, and reads in the order of denies.
func (c *localCopy) mayContainMany(ids []string) []bool {
	until := c.until.Load()
	if c.table.saturated.Load() {
		return allTrue(len(ids))
	}
	may := c.table.containsMany(c.key, ids)
	if now() >= until {
		return allTrue(len(ids))
	}
	return may
}

// left returns how long a no is still valid.
func (c *localCopy) left() time.Duration { return time.Duration(c.until.Load() - now()) }
