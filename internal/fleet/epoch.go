package fleet

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Clearing
//
// A Clear ends everything, a ClearTags what has one of some tags, and an ExpireTags has that go on
// as a fallback alone. The tags of a group share 65,536 counters for the clears and as many for the
// expiries, each of which holds the time of its last one; so what a clear of tags
// costs does not grow with their number, and it ends by chance one tag in 65,536 too many. An expiry is
// a clear of its own counters: all that follows holds for it too.
// Times are those of the server's clock, in microseconds, and each clear of a group is later
// than all before it.
//
// The epoch of a value is the latest clear of anything that its process knew before the load
// began. The value counts only where no Clear is known that is later than that, nor a clear
// of one of its tags. So a clear writes one key, however many values there are, and they end
// by their TTL.
//
// A hit takes one round trip, so it cannot ask for the clears too: on a cluster they
// stand on another node. A process knows them as it knows of invalidations:
//
//   - The process that clears knows it when its call returns.
//   - The others are told by message, and read what has changed then. Until a message arrives, they
//     may answer with what they find in Redis, as with their local tiers.
//   - While messages do not arrive, a process reads them every half second, and what it
//     has read counts for a second. Without them no value counts, and every process loads for
//     itself. So a process that is cut off from messages alone is a second behind at most, from
//     the moment that it notices (three heartbeats).
//   - They are read once more before messages are relied on: at the start and after each gap.
//
// Redis may lose the key, by eviction or in a failover. Every process reads it now and then,
// however many messages name what has changed meanwhile, and puts back what it knows. A key
// that nobody can put back whole has a floor, the time from which on it is complete: what has
// tags and an earlier epoch does not count, since one of them may have been cleared. Epochs are
// times, so that one that begins after such a loss is still higher than those that values carry.
//
// This file has what a process knows, poll.go when it reads that, and clears.go how it clears, reads
// and puts back.

// maxLife is the longest life of a key in Redis. A clear has to outlive every
// value from before it.
const maxLife = 366 * 24 * time.Hour

// tagCounters is how many counters the tags of a group share for clears. The numbers of those for
// expiries follow.
const tagCounters = 1 << 16

// The two kinds of counters, by the number of their first.
const (
	clearing    = 0
	expiring    = tagCounters
	allCounters = 2 * tagCounters
)

// counterOf is the number of a tag's counter, of a kind. The digest of the tag is given.
func counterOf(tag, kind uint32) uint32 { return kind + tag%tagCounters }

// An epoch is what a process knows of the clears of a group.
type epoch struct {
	read    func(complete uint64, wanted []uint32) (clears, error) // from Redis; nil without Redis
	cleared func()                                                 // called when a Clear is learned of
	lag     time.Duration                                          // Keyspace.ReplicaLag
	closing context.Context
	work    sync.WaitGroup

	known     atomic.Uint64                                 // the last Clear
	floor     atomic.Uint64                                 // what has tags and an earlier epoch does not count
	latest    atomic.Uint64                                 // clear of anything
	tagged    atomic.Uint64                                 // the latest clear of tags, 0 if there was none
	tagClears atomic.Uint64                                 // how often tagged, floor or a counter has risen
	tags      [2]atomic.Pointer[[tagCounters]atomic.Uint64] // by kind; nil: none of that kind has risen
	heard     atomic.Bool                                   // messages arrive, and all clears were read since they do

	mu         sync.Mutex // guards what follows
	recent     []learned  // of the last lag, oldest first
	subscribed bool
	live       bool
	gaps       int             // how often messages may have been missed
	clears     int             // how often a message has told of a Clear
	complete   uint64          // every clear up to this one is known
	changed    map[uint32]bool // counters of which a message has told, and which have not been read since
	began      time.Time       // when the last read that was answered began
	until      time.Time       // what is known counts until then, if it is not heard
	done       chan struct{}   // closed when the clears have been read, or could not be
	kick       chan struct{}   // wakes the reading goroutine
	running    bool            // the reading goroutine
	touch      *time.Timer     // starts it again
	size       int             // how many counters Redis had when all were read
	due        time.Time       // when all are to be read again, however many messages come meanwhile
}

// A learned is that this process has learned of clears: one, or several at once.
type learned struct {
	before uint64 // the latest clear that it knew until then
	at     time.Time
}

// clears is what Redis knows.
type clears struct {
	clear, floor, latest uint64
	complete             uint64    // the latest when the counters were read
	counters             []counter // those that were asked for, or all
}

// A counter is the last clear of the tags that share it.
type counter struct {
	number uint32
	clear  uint64
}

func newEpoch(closing context.Context, lag time.Duration, cleared func()) *epoch {
	return &epoch{closing: closing, lag: lag, cleared: cleared, changed: map[uint32]bool{}, done: make(chan struct{}), kick: make(chan struct{}, 1)}
}

// ofLoad is the epoch of a load that begins now. While replicas of the source may lag behind
// a clear, a loaded value must not outlive it. The value gets what this process knew before it
// learned of that clear, and not the time of the clear less one: a process may learn of several
// at once, or of the later one first, and the value may have the tag of an earlier one.
func (e *epoch) ofLoad() uint64 {
	if e.lag == 0 {
		return e.latest.Load()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgetRecent()
	if len(e.recent) > 0 {
		return e.recent[0].before
	}
	return e.latest.Load()
}

// forgetRecent forgets the clears that lagging replicas have by now. The caller holds e.mu.
func (e *epoch) forgetRecent() {
	e.recent = slices.DeleteFunc(e.recent, func(l learned) bool { return time.Since(l.at) >= e.lag })
}

// ends reports whether a clear that is known ends what has this epoch and tags.
func (e *epoch) ends(epoch uint64, tags []uint32) bool {
	return epoch < e.known.Load() || len(tags) > 0 && epoch < e.floor.Load() || e.risenSince(epoch, tags, clearing)
}

// risenSince reports whether the counter of one of tags, of a kind, is later than epoch.
func (e *epoch) risenSince(epoch uint64, tags []uint32, kind uint32) bool {
	return epoch < e.tagged.Load() && slices.ContainsFunc(tags, func(tag uint32) bool { return epoch < e.counter(counterOf(tag, kind)) })
}

// counter is what a counter stands at.
func (e *epoch) counter(number uint32) uint64 {
	if all := e.tags[number/tagCounters].Load(); all != nil {
		return all[number%tagCounters].Load()
	}
	return 0
}

// learn takes note of clears that Redis knows or knew.
func (e *epoch) learn(c clears) { e.note(func() clears { return c }) }

// note takes note of clears. It calls what with e.mu held.
func (e *epoch) note(what func() clears) {
	e.mu.Lock()
	c, was, tags := what(), e.floor.Load(), false
	for _, counter := range c.counters {
		tags = e.learnCounter(counter) || tags
	}
	if raise(&e.floor, c.floor) && was > 0 { // what is in the local tier may have to be looked at
		raise(&e.tagged, c.floor)
		tags = true
	}
	if tags {
		e.tagClears.Add(1) // after the counters: whoever sees it finds them
	}
	risen := c.clear > e.known.Load()
	if latest := e.latest.Load(); e.lag > 0 && c.latest > max(latest, c.floor) { // one in which nothing was cleared begins with its floor
		e.forgetRecent() // else a process that never loads would remember them all
		e.recent = append(e.recent, learned{latest, time.Now()})
	}
	raise(&e.latest, c.latest)
	raise(&e.known, c.clear) // last: whoever sees it finds the rest
	e.mu.Unlock()
	if risen && e.cleared != nil {
		e.cleared() // after known: what is read from now on is judged by it
	}
}

// clearHere clears without Redis: everything or, if there are any, the counters of numbers.
func (e *epoch) clearHere(numbers ...uint32) {
	e.note(func() clears {
		now := clears{latest: e.latest.Load() + 1}
		if len(numbers) == 0 {
			now.clear = now.latest
		}
		for _, n := range numbers {
			now.counters = append(now.counters, counter{n, now.latest})
		}
		return now
	})
}

// learnCounter reports whether the counter is news. The caller holds e.mu.
func (e *epoch) learnCounter(c counter) bool {
	if c.clear == 0 {
		return false
	}
	all := &e.tags[c.number/tagCounters]
	if all.Load() == nil {
		all.Store(new([tagCounters]atomic.Uint64))
	}
	if !raise(&all.Load()[c.number%tagCounters], c.clear) {
		return false
	}
	raise(&e.tagged, c.clear)
	return true
}

// raise stores n if it is more, and reports whether it is. The caller holds e.mu.
func raise(to *atomic.Uint64, n uint64) bool {
	if n <= to.Load() {
		return false
	}
	to.Store(n)
	return true
}
