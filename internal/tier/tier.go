// Package tier implements package localcache, whose documentation says what is promised. It also has
// what only package cache needs: marks, nulls, values past their life, and trust in the messages by
// which processes announce deletions to each other.
//
//   - A fill that began before a deletion does not bring the old value back: a reader takes a
//     [Mark] before it reads from Redis or the database, and Fill drops the value
//     if a deletion has overtaken the mark.
//   - Of two fills with equal marks either may stay.
//
// # How it works
//
// Every id belongs to one of 65,536 stripes (16,384 with a budget below 8 MiB), and every stripe has a generation,
// a number that grows with each deletion. An entry carries the generation of its
// mark, and counts only while that is the current one. So a deletion is one atomic
// addition. It does not call ristretto's Del, which may block for tens of milliseconds
// and take effect later. ristretto still has the entry, which is now dead: no Get
// returns it, it takes its part of the budget, and the next fill overwrites it or
// other entries push it out. If ristretto applies writes out of order, the result is
// a miss and never an old value, because each entry has its generation.
//
// Entries that were read are also in a table in front of ristretto, see front, where a
// hit takes no lock. Entries that ristretto has not taken from its queue yet are in a
// table behind it, see queue. Caches may share the memory for all this: see [Budget].
//
// An id is a key as text; processes use it to announce deletions to each other. A key
// is the argument of Get, of any comparable type. The two need not be equal, but a key
// must always have the same id.
//
// [ristretto]: https://github.com/dgraph-io/ristretto
package tier

import (
	"math"
	"sync/atomic"
	"time"
)

// Kind says what Get has found.
type Kind uint8

const (
	Miss  Kind = iota // nothing
	Value             // a value
	Null              // the key is known not to exist
	Past              // nothing that counts, but Kept may return a value whose life is over
)

// A Mark is a moment in the life of an id, see [Cache.Mark]. The zero Mark is
// before every moment: a fill with it is dropped.
type Mark uint64 // the generation, and in the low 16 bits the stripe

func markOf(generation uint32, stripe uint16) Mark { return Mark(generation)<<16 | Mark(stripe) }

func (m Mark) generation() uint32 { return uint32(m >> 16) }

func (m Mark) stripe() uint16 { return uint16(m) }

// A Cache holds values by key. Make one with [New]. A nil *Cache is a cache that
// is switched off: it finds nothing and keeps nothing.
//
// All methods may be called concurrently. None of them blocks, except Close.
type Cache[K comparable, V any] struct {
	calls       callCounter
	clock       clock
	maxAge      atomic.Int64 // in nanoseconds; older entries do not count, see Trust and Close
	hash        hasher[K]
	generations *generations
	budget      *Budget
	values      *part[K, V]
	nulls       *part[K, struct{}] // nil: nulls are not kept
	hot         *hot[K]            // nil if Options.HotKeys is 0

	ttl         time.Duration
	distrustTTL time.Duration
	flushes     atomic.Uint64
	deletes     atomic.Uint64
	closing     atomic.Bool
	closed      chan struct{}
}

// New returns a cache, or an error that names the field of o that is wrong. If o.MaxBytes is
// negative, New returns nil, a cache that is off.
//
// A cache owns goroutines and a timer, from its first fill on: Close it.
func New[K comparable, V any](o Options) (*Cache[K, V], error) {
	o, err := o.withDefaults()
	if err != nil || o.MaxBytes < 0 {
		return nil, err
	}
	c := &Cache[K, V]{
		hash:        newHasher[K](),
		generations: newGenerations(o.Budget.maxBytes()),
		budget:      o.Budget,
		ttl:         o.TTL,
		distrustTTL: o.DistrustTTL,
		hot:         newHot[K](o.HotKeys),
		closed:      make(chan struct{}),
	}
	values, nulls := c.budget.join()
	c.values = newPart[K, V](values, c.hash)
	c.values.front = newFront()
	if nulls != nil && o.MaxNullBytes >= 0 {
		c.nulls = newPart[K, struct{}](nulls, c.hash)
	}
	c.Trust(true)
	c.clock.start()
	return c, nil
}

// Get returns the value of key and Value, or nil and Null, Past or Miss. If both a value and
// a null count, Get returns the value. Nobody may change the value. Get does not allocate.
func (c *Cache[K, V]) Get(key K) (*V, Kind) {
	if c == nil {
		return nil, Miss
	}
	hash, check := c.hash.sum(key) // before enter, because it panics if key is an interface that holds a slice, say
	shard := c.calls.shard()
	passed := false
	if e := c.values.match(c.values.front.get(hash), hash, check, key); e != nil && c.counts(&e.head) {
		n := shard.fronted.Add(1)
		if !sampled(n, passBits) || !sampled(n, roomyPassBits) && c.values.store.roomy() {
			return &e.value, Value
		}
		shard.passed.Add(1)
		c.hot.sample(n, hash, key)
		passed = true
	}
	if !shard.enter() {
		return nil, Miss
	}
	value := c.values.get(hash, check, key)
	if value != nil && c.counts(&value.head) {
		n := shard.leave(hit)
		c.values.front.put(&value.head, n)
		if !passed {
			c.hot.sample(n, hash, key)
		}
		return &value.value, Value
	}
	if e := c.nulls.get(hash, check, key); e != nil && c.counts(&e.head) {
		c.hot.sample(shard.leave(null), hash, key)
		return nil, Null
	}
	c.hot.sample(shard.leave(miss), hash, key)
	if value != nil && c.current(&value.head) {
		return nil, Past
	}
	return nil, Miss
}

// Again is Get for a caller whose Get has just missed. It never returns Past, and Stats does
// not count it.
func (c *Cache[K, V]) Again(key K) (value *V, kind Kind) {
	if c == nil {
		return nil, Miss
	}
	hash, check := c.hash.sum(key)
	shard := c.calls.shard()
	if !shard.enter() {
		return nil, Miss
	}
	defer shard.leave(other)
	if e := c.values.get(hash, check, key); e != nil && c.counts(&e.head) {
		return &e.value, Value
	}
	if e := c.nulls.get(hash, check, key); e != nil && c.counts(&e.head) {
		return nil, Null
	}
	return nil, Miss
}

// Kept returns the value of key even if its life is over, or nil, for a caller that
// finds nothing better. It returns no value that was pushed out, or that is older than a
// deletion of its id or a null of key. The value may be far older than Options.TTL, and
// Kept does not report its age.
func (c *Cache[K, V]) Kept(key K) *V {
	if c == nil {
		return nil
	}
	hash, check := c.hash.sum(key)
	shard := c.calls.shard()
	if !shard.enter() {
		return nil
	}
	e, null := c.values.get(hash, check, key), c.nulls.get(hash, check, key)
	shard.leave(other)
	if e == nil || !c.current(&e.head) || null != nil && c.current(&null.head) && null.filled >= e.filled {
		return nil
	}
	return &e.value
}

// counts reports whether an entry is neither too old nor overtaken by a deletion.
func (c *Cache[K, V]) counts(e *head) bool {
	age := c.clock.soon.Load() - e.filled
	return age < int64(e.life)*int64(time.Millisecond) && age < c.maxAge.Load() && c.current(e)
}

// current reports whether no deletion has overtaken an entry.
func (c *Cache[K, V]) current(e *head) bool { return e.generation == c.generations.now(e.stripe()) }

// Mark returns the present moment of id. Call it before you read the value to fill from
// Redis or the database: then a deletion that the read may have missed drops the fill.
func (c *Cache[K, V]) Mark(id string) Mark {
	if c == nil {
		return 0
	}
	stripe := c.generations.stripeOf(id)
	return markOf(c.generations.now(stripe), stripe)
}

// KeyMark is Mark for a cache without ids, whose deletions are not announced to other processes.
func (c *Cache[K, V]) KeyMark(key K) Mark {
	if c == nil {
		return 0
	}
	hash, _ := c.hash.sum(key)
	stripe := c.generations.fold(hash >> 48)
	return markOf(c.generations.now(stripe), stripe)
}

// Fill stores value for key, and reports whether it did. It does not if the id was
// deleted or the cache flushed since m, if the cache is closed, or if there is no
// room at present.
//
// m is the mark of the id that belongs to key. size is how many bytes of memory value refers
// to, beyond its own unsafe.Sizeof: the text of its strings and what its pointers and slices
// point to. A negative size counts as 0. The entry
// lives for ttl from now, or for Options.TTL if that is shorter. With a ttl of 50 ms or
// less Fill does not store it.
func (c *Cache[K, V]) Fill(m Mark, key K, value V, size int, ttl time.Duration) bool {
	if c == nil {
		return false
	}
	return fill(c, c.values, m, key, value, size, ttl)
}

// FillNull notes that key does not exist, as Fill does for a value. A value that counts
// hides the null, so Delete the id first if there may be a value.
func (c *Cache[K, V]) FillNull(m Mark, key K, ttl time.Duration) bool {
	if c == nil {
		return false
	}
	return fill(c, c.nulls, m, key, struct{}{}, 0, ttl)
}

// fill stores an entry in t, a part of c. T is V for a value, struct{} for a null.
func fill[K comparable, V, T any](c *Cache[K, V], t *part[K, T], m Mark, key K, value T, size int, ttl time.Duration) bool {
	shard := c.calls.shard()
	if !shard.enter() {
		return false
	}
	lasts := min(ttl, c.ttl)
	if t == nil || lasts <= lead {
		shard.leave(refused)
		return false
	}
	// This check only saves work: a deletion may overtake the mark right after it.
	if m.generation() != c.generations.now(m.stripe()) {
		shard.leave(outdated)
		return false
	}
	if !t.put(c.life(m, lasts), key, value, size) {
		shard.leave(refused)
		return false
	}
	shard.leave(filled)
	return true
}

// life returns the life of an entry that starts now. It has the generation of the
// mark, not the present one, so that a fill that a deletion overtakes is a miss.
func (c *Cache[K, V]) life(m Mark, lasts time.Duration) life {
	return life{mark: m, filled: c.clock.now(), lasts: milliseconds(lasts)}
}

// milliseconds returns d in milliseconds, rounded down, at most seven weeks.
func milliseconds(d time.Duration) uint32 { return uint32(min(d.Milliseconds(), math.MaxUint32)) }

// Put replaces the value or null of key by a value that is newer than all reads that
// have begun. When Put returns, the former value or null is gone, even if Put reports
// that it did not store the new one. m is a mark of the id of key, of any age; the other
// arguments are as for Fill.
func (c *Cache[K, V]) Put(m Mark, key K, value V, size int, ttl time.Duration) bool {
	if c == nil {
		return false
	}
	m = markOf(c.generations.bump(m.stripe()), m.stripe())
	return fill(c, c.values, m, key, value, size, ttl)
}

// Delete drops the value and the null of id: a Get that starts after Delete has
// returned does not find them, and a Fill with an older mark is dropped.
func (c *Cache[K, V]) Delete(id string) {
	if c == nil {
		return
	}
	// Overwriting the dead entry would free its memory sooner, but that needs the key,
	// and another process' deletion names only the id. It also takes 380 ns instead of
	// 27 ns. The budget counts dead entries.
	c.Overtake(markOf(0, c.generations.stripeOf(id)))
}

// Overtake deletes the id that m is a mark of.
func (c *Cache[K, V]) Overtake(m Mark) {
	if c == nil {
		return
	}
	c.generations.bump(m.stripe())
	c.deletes.Add(1)
}

// Flush deletes every id. Its cost does not depend on the number of entries.
func (c *Cache[K, V]) Flush() {
	if c == nil {
		return
	}
	c.generations.bumpAll()
	c.flushes.Add(1)
}

// Trust tells the cache whether deletions by other processes arrive. While live is
// false, entries, also those filled before, count only for Options.DistrustTTL after
// their fill. When live is true again, all entries count for their whole life; Flush
// first if a deletion may have been missed. A new cache is trusted.
func (c *Cache[K, V]) Trust(live bool) {
	if c == nil {
		return
	}
	age := int64(math.MaxInt64)
	if !live {
		age = max(0, int64(c.distrustTTL))
	}
	for {
		was := c.maxAge.Load()
		if was == closedAge || c.maxAge.CompareAndSwap(was, age) {
			return
		}
	}
}

// closedAge is the maxAge of a closed cache: no entry counts, of whatever age. Get looks
// into the front before it checks whether the cache is closed, and with a Budget the
// entries stay in memory while another cache uses the Budget.
const closedAge = math.MinInt64

// Close frees the entries and ends the goroutines of the cache, or leaves both to the
// last cache of its Budget. It waits for calls that run, which takes microseconds. Later
// Gets return Miss, and later Fills false. A second Close waits for the first.
func (c *Cache[K, V]) Close() {
	if c == nil {
		return
	}
	if !c.closing.CompareAndSwap(false, true) {
		<-c.closed
		return
	}
	c.maxAge.Store(closedAge)
	c.calls.close()
	c.clock.stop()
	c.budget.leave()
	close(c.closed)
}
