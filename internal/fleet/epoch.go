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
// A Clear ends all values, and a ClearTags ends the values that have one of some tags. After an
// ExpireTags such values may be served only as fallbacks. The tags of a group share 65,536 counters
// for clears and as many for expiries; a counter has the time of its last clear. So the cost of a
// clear does not grow with the number of tags, and it ends by chance one tag in 65,536 too many. An
// expiry is a clear of its own counters: everything below holds for it too. Times are by the
// server's clock, in microseconds, and each clear of a group is later than all before it.
//
// The epoch of a value is the time of the latest clear of any kind that its process knew before
// the load began. The value counts only if no later Clear is known, and no later clear of one of
// its tags. So a clear writes one key, however many values there are; the ended values stay in
// Redis until their TTL.
//
// A hit takes one round trip, so it cannot read the clears too: on a cluster they are on another
// node. A process learns of clears as it learns of invalidations:
//
//   - The process that clears knows the clear when its call returns.
//   - Other processes receive a message, and then read the changes. Until the message arrives, they
//     may serve values from Redis that have ended, as from their local tiers.
//   - While messages do not arrive, a process reads the clears every half second, and uses them for
//     a second after each read. If it cannot read them, no value counts, and the process loads for
//     itself. So a process that is cut off from messages alone is at most a second behind, from the
//     moment when it notices (three heartbeats).
//   - If it cannot read what a message has announced, it does the same, and distrusts its local tier as
//     while messages do not arrive: a Redis that takes longer than RedisTimeout may still send messages.
//   - A process reads the clears once more before it relies on messages: at the start and after each gap.
//
// Redis may lose the key, by eviction or in a failover. Every process reads it now and then, even
// if messages name all changes, and puts back the clears that it knows. If no process knows them
// all, the key gets a floor, the time from which on it is complete: a value with tags and an earlier
// epoch does not count, since one of its tags may have been cleared. Epochs are times, so that an
// epoch that begins after such a loss is still higher than those of stored values.
//
// This file has the clears that a process knows, poll.go when it reads them, and clears.go how it
// clears, reads, and puts clears back.

// maxLife is the longest life of a key in Redis. A clear has to outlive every
// earlier value.
const maxLife = 366 * 24 * time.Hour

// tagCounters is how many counters the tags of a group share for clears. As many for expiries
// follow.
const tagCounters = 1 << 16

// The kinds of counters, each the number of the kind's first counter.
const (
	clearing    = 0
	expiring    = tagCounters
	allCounters = 2 * tagCounters
)

// counterOf returns the number of the counter of a kind for the tag with the digest tag.
func counterOf(tag, kind uint32) uint32 { return kind + tag%tagCounters }

// An epoch has the clears of a group that this process knows.
type epoch struct {
	read    func(complete uint64, wanted []uint32) (clears, error) // from Redis; nil without Redis
	cleared func()                                                 // called when the process learns of a Clear
	live    func(bool)                                             // called when heard changes, with mu held; may be nil
	lag     time.Duration                                          // Keyspace.ReplicaLag
	closing context.Context
	work    sync.WaitGroup

	known     atomic.Uint64                                 // the last Clear
	floor     atomic.Uint64                                 // values with tags and an earlier epoch do not count
	latest    atomic.Uint64                                 // the latest clear of any kind
	tagged    atomic.Uint64                                 // the latest clear of tags, 0 if there was none
	tagClears atomic.Uint64                                 // how often tagged, floor or a counter has risen
	tags      [2]atomic.Pointer[[tagCounters]atomic.Uint64] // by kind; nil: none of that kind has risen
	heard     atomic.Bool                                   // messages arrive, and all clears were read since they began to

	mu         sync.Mutex // guards what follows
	recent     []learned  // within the last lag, oldest first
	subscribed bool
	linkLive   bool
	gaps       int             // how often messages may have been missed
	clears     int             // how many messages have announced a Clear
	complete   uint64          // every clear up to this one is known
	changed    map[uint32]bool // counters that messages have named and that have not been read since
	began      time.Time       // when the last successful read began
	until      time.Time       // the known clears may be used until then, while heard is false
	done       chan struct{}   // closed when the clears have been read, or could not be
	kick       chan struct{}   // wakes the reading goroutine
	running    bool            // the reading goroutine runs
	touch      *time.Timer     // starts the reading goroutine at due
	size       int             // how many counters Redis had when all were read
	due        time.Time       // when to read all counters again, even if messages name all changes
}

// A learned notes when this process learned of clears, one or several at once.
type learned struct {
	before uint64 // the latest clear that the process knew until then
	at     time.Time
}

// clears has the clears that are in Redis.
type clears struct {
	clear, floor, latest uint64
	complete             uint64    // the value of latest when the counters were read
	counters             []counter // the wanted ones, or all
}

// A counter has the time of the last clear of the tags that share it.
type counter struct {
	number uint32
	clear  uint64
}

func newEpoch(closing context.Context, lag time.Duration, to Messages) *epoch {
	return &epoch{closing: closing, lag: lag, cleared: to.Cleared, live: to.Live, changed: map[uint32]bool{}, done: make(chan struct{}), kick: make(chan struct{}, 1)}
}

// ofLoad returns the epoch for a load that begins now. While replicas of the source may lag
// behind a clear, a loaded value must not outlive the clear. So its epoch is the latest clear
// that this process knew before it learned of that one. The time of the clear less one would be
// wrong: a process may learn of several clears at once, or of the later one first, and the value
// may have a tag of an earlier one.
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

// forgetRecent drops the clears that are older than the lag of replicas. The caller holds e.mu.
func (e *epoch) forgetRecent() {
	e.recent = slices.DeleteFunc(e.recent, func(l learned) bool { return time.Since(l.at) >= e.lag })
}

// ends reports whether a known clear is newer than a value with this epoch and tags.
func (e *epoch) ends(epoch uint64, tags []uint32) bool {
	return epoch < e.known.Load() || len(tags) > 0 && epoch < e.floor.Load() || e.risenSince(epoch, tags, clearing)
}

// risenSince reports whether the counter of a kind for one of tags is later than epoch.
func (e *epoch) risenSince(epoch uint64, tags []uint32, kind uint32) bool {
	return epoch < e.tagged.Load() && slices.ContainsFunc(tags, func(tag uint32) bool { return epoch < e.counter(counterOf(tag, kind)) })
}

// counter returns the time of a counter, 0 if it has never risen.
func (e *epoch) counter(number uint32) uint64 {
	if all := e.tags[number/tagCounters].Load(); all != nil {
		return all[number%tagCounters].Load()
	}
	return 0
}

// learn notes clears that are or were in Redis.
func (e *epoch) learn(c clears) { e.note(func() clears { return c }) }

// note notes the clears that what returns. It calls what with e.mu held.
func (e *epoch) note(what func() clears) {
	e.mu.Lock()
	c, was, tags := what(), e.floor.Load(), false
	for _, counter := range c.counters {
		tags = e.learnCounter(counter) || tags
	}
	if raise(&e.floor, c.floor) && was > 0 { // values in the local tier may have ended
		raise(&e.tagged, c.floor)
		tags = true
	}
	if tags {
		e.tagClears.Add(1) // after the counters: a reader that sees it finds them
	}
	risen := c.clear > e.known.Load()
	if latest := e.latest.Load(); e.lag > 0 && c.latest > max(latest, c.floor) { // in a new key latest is the floor, without any clear
		e.forgetRecent() // or a process that never loads would keep them all
		e.recent = append(e.recent, learned{latest, time.Now()})
	}
	raise(&e.latest, c.latest)
	raise(&e.known, c.clear) // last: a reader that sees it finds the rest
	e.mu.Unlock()
	if risen && e.cleared != nil {
		e.cleared() // after known: values that are read from now on are judged by it
	}
}

// clearHere clears within this process: the counters of numbers, or everything if there are none.
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

// learnCounter notes a counter, and reports whether it has risen. The caller holds e.mu.
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

// raise stores n if it is larger, and reports whether it is. The caller holds e.mu.
func raise(to *atomic.Uint64, n uint64) bool {
	if n <= to.Load() {
		return false
	}
	to.Store(n)
	return true
}
