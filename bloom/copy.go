package bloom

import (
	"sync/atomic"
	"time"
)

// A localCopy is the table from which a process answers for a shared filter. It holds what
// Redis holds, as of the entry of the log that the updater has read last, and the adds of
// this process, which are ahead of that.
type localCopy struct {
	table *table
	key   key
	shape string       // of the snapshot from which it was made, as encode writes it
	until atomic.Int64 // a no counts before this time, on the clock of now
}

var start = time.Now()

// now is a clock that does not jump when somebody sets the time.
func now() int64 { return int64(time.Since(start)) }

// denies reports whether id surely is not in the set.
//
// The order of the reads matters. until comes first: the bits read after it are at least
// as new. The clock comes last: a process that was stopped between two of these lines
// must not answer from the bits of before.
func (c *localCopy) denies(id string) bool {
	until := c.until.Load()
	return !c.table.saturated.Load() && !c.table.contains(c.key.sum(id)) && now() < until
}

// mayContainMany answers for many ids, in the order of denies.
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

// left returns for how long a no still counts.
func (c *localCopy) left() time.Duration { return time.Duration(c.until.Load() - now()) }
