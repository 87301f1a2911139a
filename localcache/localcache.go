// Package localcache keeps decoded values in this process, in front of a
// shared cache or a database, and forgets them the moment it is told to.
//
// It is [ristretto] made coherent. ristretto is quick, bounded, and good at
// choosing what to keep, but it applies its writes later, in a goroutine of
// its own: the second of two quick writes of a new key is lost for good, a
// deleted value can be read after Del returned, and Close panics the callers
// that are inside. Here:
//
//   - After [Cache.Delete], [Cache.Flush] or [Cache.Put] has returned, no Get
//     that starts then returns what was there before.
//   - Nor does a fill that was under way bring it back: a reader takes a [Mark]
//     before it reads from Redis or the database, and what it read is dropped
//     if the mark has been overtaken.
//   - Nothing is returned past its life. A life may end up to 50 ms early.
//   - [Cache.Close] waits for the callers inside; later ones find nothing.
//   - The budget is in bytes and counts what an entry takes beside its value.
//     Nulls, keys known not to exist, have a budget of their own.
//
// Not promised is that a fill is kept, or for how long: the least wanted
// entries go first, and a new key has to be wanted more than what it would
// push out. A fill of a new key is seen some microseconds later. Of two fills
// with equal marks either may stay. A deletion also ends the entries of other
// ids in the same stripe, one in 65,536 of all. Values are handed out as they
// were given, not copied, so neither side may change them. And when the
// process as a whole was stopped, by SIGSTOP or with its virtual machine, lives
// that ended meanwhile may seem to go on for the first milliseconds.
//
// # How it works
//
// Every id belongs to one of 65,536 stripes, and every stripe has a generation,
// a number that grows with each deletion. An entry carries the generation that
// its mark saw, and counts only while that is the current one. So a deletion is
// one atomic addition, and ristretto is not asked to delete: its Del may block
// for tens of milliseconds and take effect later. What it holds then is dead:
// out of reach, in the budget, and overwritten by the next fill or pushed out
// in time. Whatever ristretto does out of order ends as a miss and never as an
// old value, because what it mixes up are entries, and each knows its
// generation.
//
// The hottest few hundred entries are also in a small table before ristretto,
// where a hit takes no lock.
//
// An id is what processes tell each other about: the key as text. A key is
// what the caller of Get holds, of any comparable type. They need not be
// equal, but a key has to have the same id always.
//
// [ristretto]: https://github.com/dgraph-io/ristretto
package localcache

import (
	"math"
	"sync/atomic"
	"time"
)

// Kind is what Get found.
type Kind uint8

const (
	Miss  Kind = iota // nothing is known
	Value             // a value
	Null              // the key is known not to exist
)

// A Mark is a moment in the life of an id, see [Cache.Mark]. The zero Mark is
// before every moment: a fill with it is dropped.
type Mark struct {
	generation uint64
	stripe     uint16
}

// A Cache holds values by key. Make one with [New]. A nil *Cache is a cache that
// is switched off: it finds nothing and keeps nothing.
//
// All methods may be called concurrently. None of them blocks, except Close.
type Cache[K comparable, V any] struct {
	gate        gate
	clock       clock
	maxAge      atomic.Int64 // older entries do not count, see Distrust
	hash        hasher[K]
	generations *generations
	values      *tier[K, V]
	nulls       *tier[K, struct{}] // nil: nulls are not kept

	ttl         time.Duration
	distrustTTL time.Duration
	flushes     atomic.Uint64
	deletes     atomic.Uint64
	closing     atomic.Bool
	closed      chan struct{}
}

// New makes a cache, or returns an error that names the field of o that cannot
// be. If o.MaxBytes is negative, it returns nil, a cache that is off.
//
// A cache owns goroutines: Close it.
func New[K comparable, V any](o Options) (*Cache[K, V], error) {
	o, err := o.resolved()
	if err != nil || o.MaxBytes < 0 {
		return nil, err
	}
	hash := newHasher[K]()
	c := &Cache[K, V]{
		hash:        hash,
		generations: newGenerations(),
		values:      newTier[K, V](o.MaxBytes, hash),
		ttl:         o.TTL,
		distrustTTL: o.DistrustTTL,
		closed:      make(chan struct{}),
	}
	c.values.front = new(front[K, V])
	if o.MaxNullBytes > 0 {
		c.nulls = newTier[K, struct{}](o.MaxNullBytes, hash)
	}
	c.Distrust(false)
	c.clock.start()
	return c, nil
}

// Get returns the value of key and Value, or the zero V and Null or Miss. If
// there are both a value and a null that count, it is the value. Get does not
// allocate.
func (c *Cache[K, V]) Get(key K) (V, Kind) {
	var none V
	if c == nil {
		return none, Miss
	}
	hash := c.hash.sum(key) // outside the gate, as it panics if key holds what has no equality
	lane := c.gate.lane()
	if e := c.values.front.get(hash, key); e != nil && c.counts(&e.stamp) {
		if !sampled(lane.fronted.Add(1), passBits) {
			return e.value, Value
		}
		lane.passed.Add(1)
	}
	if !lane.enter() {
		return none, Miss
	}
	if e := c.values.get(hash, key); e != nil && c.counts(&e.stamp) {
		if sampled(lane.leave(hit), putBits) {
			c.values.front.put(hash, e)
		}
		return e.value, Value
	}
	if e := c.nulls.get(hash, key); e != nil && c.counts(&e.stamp) {
		lane.leave(null)
		return none, Null
	}
	lane.leave(miss)
	return none, Miss
}

// Kept returns the value of key even if its life is over, for a caller who finds
// nothing better: as long as there was room for it, unless the id has been deleted
// or a null was filled since. It may be far older than Options.TTL; how old is for
// the value to know.
func (c *Cache[K, V]) Kept(key K) (V, bool) {
	var none V
	if c == nil {
		return none, false
	}
	hash := c.hash.sum(key)
	lane := c.gate.lane()
	if !lane.enter() {
		return none, false
	}
	e, null := c.values.get(hash, key), c.nulls.get(hash, key)
	lane.leave(kept)
	if e == nil || !c.current(&e.stamp) || null != nil && c.current(&null.stamp) && null.filled >= e.filled {
		return none, false
	}
	return e.value, true
}

// counts reports whether an entry is neither overtaken nor too old.
func (c *Cache[K, V]) counts(s *stamp) bool {
	age := c.clock.soon.Load() - s.filled
	return age < s.life && age < c.maxAge.Load() && c.current(s)
}

// current reports whether an entry is not overtaken by a deletion.
func (c *Cache[K, V]) current(s *stamp) bool { return s.generation == c.generations.now(s.stripe) }

// Mark returns the present moment of id. Take it before the read from Redis or
// the database that a fill is to be made of: only then does a deletion that the
// read may have missed drop the fill.
func (c *Cache[K, V]) Mark(id string) Mark {
	if c == nil {
		return Mark{}
	}
	stripe := c.generations.stripeOf(id)
	return Mark{c.generations.now(stripe), stripe}
}

// Fill offers value for key, and reports whether it was taken: not if the id
// was deleted or the cache flushed since m, if the cache is closed, or if
// there is no room at present.
//
// m is the mark of the id that belongs to key. size is what value takes
// encoded, in bytes; negative counts as 0. The entry lives for ttl from now, or
// for Options.TTL if that is shorter; with a ttl of 50 ms or less it is not
// taken.
func (c *Cache[K, V]) Fill(m Mark, key K, value V, size int, ttl time.Duration) bool {
	if c == nil {
		return false
	}
	return fill(c, c.values, m, key, value, size, ttl)
}

// FillNull is Fill with the news that key does not exist. A value that counts
// hides it; Delete the id first if there may be one.
func (c *Cache[K, V]) FillNull(m Mark, key K, ttl time.Duration) bool {
	if c == nil {
		return false
	}
	return fill(c, c.nulls, m, key, struct{}{}, 0, ttl)
}

// fill is both of them: T is V, or nothing for a null.
func fill[K comparable, V, T any](c *Cache[K, V], t *tier[K, T], m Mark, key K, value T, size int, ttl time.Duration) bool {
	hash := c.hash.sum(key)
	lane := c.gate.lane()
	if !lane.enter() {
		return false
	}
	life := min(ttl, c.ttl)
	if t == nil || life <= lead {
		lane.leave(refused)
		return false
	}
	// This look only saves the work: the mark may be overtaken right after.
	if m.generation != c.generations.now(m.stripe) {
		lane.leave(outdated)
		return false
	}
	if !t.set(hash, &entry[K, T]{value: value, stamp: c.stamp(m, life)}, key, size) {
		lane.leave(refused)
		return false
	}
	lane.leave(filled)
	return true
}

// stamp starts the life of an entry. That it carries the generation of the
// mark, not that of now, is what makes an overtaken fill harmless.
func (c *Cache[K, V]) stamp(m Mark, life time.Duration) stamp {
	return stamp{generation: m.generation, stripe: m.stripe, filled: c.clock.now(), life: int64(life)}
}

// Put replaces what is known of key by a value that is newer than any read
// under way. What was there is gone when Put returns, even if it reports that
// the value itself was not taken. id is that of key; the rest is as for Fill.
func (c *Cache[K, V]) Put(id string, key K, value V, size int, ttl time.Duration) bool {
	if c == nil {
		return false
	}
	stripe := c.generations.stripeOf(id)
	m := Mark{c.generations.bump(stripe), stripe}
	return fill(c, c.values, m, key, value, size, ttl)
}

// Delete ends what is known of id, value or null: a Get that starts after
// Delete returned does not find it, and a Fill whose mark is older is dropped.
func (c *Cache[K, V]) Delete(id string) {
	if c == nil {
		return
	}
	// The dead entry is not overwritten. That would free its memory sooner, but
	// it takes the key, which a deletion told by another process does not have,
	// and 380 ns instead of 27. The budget includes the dead.
	c.generations.bump(c.generations.stripeOf(id))
	c.deletes.Add(1)
}

// Flush is Delete for every id. Its cost does not depend on how many there are.
func (c *Cache[K, V]) Flush() {
	if c == nil {
		return
	}
	c.generations.bumpAll()
	c.flushes.Add(1)
}

// Distrust is for a time in which deletions told by other processes may be
// missed. With true, entries count only for Options.DistrustTTL after their
// fill, those already there as well. With false, all that is there counts for
// its whole life again; Flush first, if a deletion may have been missed.
func (c *Cache[K, V]) Distrust(on bool) {
	switch {
	case c == nil:
	case on:
		c.maxAge.Store(max(0, int64(c.distrustTTL)))
	default:
		c.maxAge.Store(math.MaxInt64)
	}
}

// Close frees what the cache holds and ends its goroutines. It waits for the
// callers inside, which is a matter of microseconds. Afterwards Get returns
// Miss and nothing is taken. A second Close waits for the first.
func (c *Cache[K, V]) Close() {
	if c == nil {
		return
	}
	if !c.closing.CompareAndSwap(false, true) {
		<-c.closed
		return
	}
	c.gate.shut()
	c.clock.stop()
	c.values.close()
	c.nulls.close()
	close(c.closed)
}
