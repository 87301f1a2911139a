package bloom

import (
	"errors"
	"sync/atomic"
	"time"
)

// A localCopy holds the bits of a generation of Redis in this process. It holds at least
// what Redis held at the log entry that the updater has reached. When the log has no
// newer entry, both hold exactly the same, and the updater compares their checksums.
//
// Adds of this process set their bits here at once, ahead of the log. So a removal in
// the log must not clear bits at once:
//
//  1. The log gets entry 7, which clears position p.
//  2. This process adds y, which needs p. The log gets entry 8, and the Add returns.
//  3. The updater reads the log up to entry 7.
//
// Clearing p in step 3 would deny y until entry 8 is read. So p waits in cleared until
// the log has been read up to this process's newest Add; entry 8 takes p out of it.
type localCopy struct {
	generation *generation
	key        key
	name       string       // of the generation
	until      atomic.Int64 // a no counts before this time, on the clock of now
	// cleared holds the positions that the log has cleared and that are still set
	// here. The caller of each method but denies and left holds shared.mu, or is the only
	// one to have the copy.
	cleared map[uint64]struct{}
}

var start = time.Now()

// now is a clock that does not jump when somebody sets the time.
func now() int64 { return int64(time.Since(start)) }

var errCorrupt = errors.New("what redis holds contradicts its checksums")

func newLocalCopy(rec *record, o Options, name string) *localCopy {
	o.Counting = false // only Redis counts; a copy holds bits
	return &localCopy{generation: rec.newGeneration(o, name), key: rec.key, name: name, cleared: map[uint64]struct{}{}}
}

// denies reports whether id surely is not in the set.
//
// The order of the reads matters. until comes first: the bits read after it are at least
// as new. The clock comes last: a process that was stopped between two of these lines
// must not answer from the bits of before.
func (c *localCopy) denies(id string) bool {
	until := c.until.Load()
	return !c.generation.saturated.Load() && !c.generation.contains(c.key.sum(id)) && now() < until
}

// left returns for how long a no still counts.
func (c *localCopy) left() time.Duration { return time.Duration(c.until.Load() - now()) }

func (c *localCopy) add(h hash) {
	c.keep(h)
	c.generation.add(h)
}

// holds reports whether h is in, less what the log has cleared.
func (c *localCopy) holds(h hash) bool {
	if !c.generation.contains(h) || len(c.cleared) == 0 {
		return c.generation.contains(h)
	}
	w := c.generation.spread.start(h)
	for range c.generation.spread.hashes {
		if _, cleared := c.cleared[w.next(&c.generation.spread)]; cleared {
			return false
		}
	}
	return true
}

// keep takes the positions of h out of cleared: h was added after they were cleared.
func (c *localCopy) keep(h hash) {
	if len(c.cleared) == 0 {
		return
	}
	w := c.generation.spread.start(h)
	for range c.generation.spread.hashes {
		delete(c.cleared, w.next(&c.generation.spread))
	}
}

// clearLater notes positions that the log has cleared.
func (c *localCopy) clearLater(positions []uint64) {
	for _, p := range positions {
		if p < c.generation.spread.size {
			c.cleared[p] = struct{}{}
		}
	}
}

// clearNow clears the positions in cleared.
func (c *localCopy) clearNow() {
	n := uint64(0)
	for p := range c.cleared {
		if c.generation.table.clear(p) {
			n++
		}
	}
	clear(c.cleared)
	if n > 0 {
		c.generation.filled(c.generation.set.Add(-n))
	}
}
