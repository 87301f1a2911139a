// Package localcache keeps decoded values in this process, in front of a
// database, and forgets them the moment it is told to.
//
// It is [ristretto] made coherent. ristretto is quick, bounded, and good at
// choosing what to keep, but its own goroutine applies writes later: the second of
// two quick writes of a new key is lost, a deleted value can be read after Del has
// returned, and Close panics the callers that are inside. Here:
//
//   - A Get that starts after [Cache.Delete], [Cache.Clear] or [Cache.Set] has
//     returned does not return the value from before.
//   - A [Cache.Fill] that began earlier does not bring that value back.
//   - A Get that starts after a value was taken finds it, unless the cache is at its
//     budget: then ristretto may reject it a moment later.
//   - No entry is returned past its life. A life may end up to 51 ms early.
//   - [Cache.Close] waits for the callers inside; later ones find nothing.
//   - The budget is in bytes and counts what an entry takes beside its value.
//
// What is not promised:
//
//   - A value may not be kept, or not for long: the least wanted entries go first,
//     and a new key must be wanted more than the entries it would push out.
//   - Of two Fills that run at a time either value may stay.
//   - A deletion also ends some entries of other keys, one in 65,536 of all.
//   - Values are not copied: nobody may change what a pointer, slice or map in them points to.
//   - Other processes are not told. Package cache does that, over Redis, with one of these
//     in each process: its Options.Local are the [Options] here.
//   - After the whole process was stopped, by SIGSTOP or with its virtual machine,
//     lives that ended during the stop may go on for some milliseconds.
//
// [ristretto]: https://github.com/dgraph-io/ristretto
package localcache

import (
	"math"

	"github.com/levee-go/levee/internal/tier"
)

// A Cache holds values by key. Make one with [New]. A nil *Cache is a cache that
// is switched off: it finds nothing and keeps nothing.
//
// All methods may be called concurrently. None of them blocks, except Close.
type Cache[K comparable, V any] tier.Cache[K, V]

func (c *Cache[K, V]) tier() *tier.Cache[K, V] { return (*tier.Cache[K, V])(c) }

// New makes a cache. Its error names the field of o that is wrong. If o.MaxBytes is
// negative, New returns nil, a cache that is off.
//
// A cache owns goroutines and a timer, from its first value on: Close it.
func New[K comparable, V any](o Options) (*Cache[K, V], error) {
	c, err := tier.New[K, V](tier.Options(o))
	return (*Cache[K, V])(c), err
}

// Get returns the value of key, and whether there is one. It does not allocate.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	if v, kind := c.tier().Get(key); kind == tier.Value {
		return *v, true
	}
	return value, false
}

// Fill calls load, keeps the value that it returns, and returns that. The value is not kept if
// key was deleted or set, or the cache cleared, since Fill was called: load may have read what
// was there before. Nor is it if load returns an error, which Fill returns, or if there is no
// room at present.
//
// size is what value takes in the process, in bytes, for which its size encoded may do. Several
// Fills of one key may run at a time.
func (c *Cache[K, V]) Fill(key K, load func() (value V, size int, err error)) (V, error) {
	mark := c.tier().KeyMark(key) // before the read, which a deletion may overtake
	value, size, err := load()
	if err == nil {
		c.tier().Fill(mark, key, value, size, math.MaxInt64)
	}
	return value, err
}

// Set replaces the value of key by one that is newer than all that Fills are loading. When Set
// returns, the former value is gone, even if the new one was not kept because there is no room at
// present. size is as for Fill.
func (c *Cache[K, V]) Set(key K, value V, size int) {
	c.tier().Put(c.tier().KeyMark(key), key, value, size, math.MaxInt64)
}

// Delete ends the value of key: a Get that starts after Delete has returned does not find it.
// Call it after the write to what is cached.
func (c *Cache[K, V]) Delete(key K) { c.tier().Overtake(c.tier().KeyMark(key)) }

// Clear is Delete for every key. Its cost does not depend on how many there are.
func (c *Cache[K, V]) Clear() { c.tier().Flush() }

// Stats returns the counters. While other calls run, the counters are not all of the
// same moment.
func (c *Cache[K, V]) Stats() Stats { return Stats(c.tier().Stats()) }

// Close frees the entries and ends the goroutines of the cache. It waits for the
// callers inside, which takes microseconds, but for no load. Afterwards Get finds nothing and
// nothing is kept. A second Close waits for the first.
func (c *Cache[K, V]) Close() { c.tier().Close() }
