// Package localcache keeps decoded values in this process, in front of a
// database, and forgets them the moment it is told to.
//
// It makes [ristretto] coherent. ristretto is quick, bounded, and good at
// choosing what to keep, but its own goroutine applies writes later: the second of
// two quick writes of a new key is lost, a deleted value can be read after Del has
// returned, and Close panics the callers that are inside. Here:
//
//   - A Get that starts after [Cache.Delete], [Cache.Clear] or [Cache.Set] has
//     returned does not return the value from before.
//   - A [Cache.Fill] that began earlier does not bring that value back.
//   - A Get that starts after a value was accepted finds it, unless the cache is at its
//     budget: then ristretto may reject the value a moment later.
//   - No entry is returned past its life. A life may end up to 51 ms early.
//   - [Cache.Close] waits for running calls; later calls find nothing.
//   - The budget is in bytes and counts what an entry takes beside its value.
//
// Not guaranteed:
//
//   - A value may not be kept, or not for long: the least wanted entries go first,
//     and a new key must be wanted more than the entries it would push out.
//   - Of two Fills that run at a time either value may stay.
//   - A deletion also ends some entries of other keys, one in 65,536 of all, or in 16,384
//     with a MaxBytes below 8 MiB.
//   - Values are not copied: nobody may change what a pointer, slice or map in them points to.
//   - Other processes are not notified. Package cache does that, over Redis, with such a cache
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

// New makes a cache. Its error names the field of o that is wrong. If o.MaxBytes is negative, New
// returns nil, a cache that is off.
//
// A cache owns goroutines and a timer from its first value on, so Close it.
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

// Fill calls load, keeps the value that it returns, and returns it. The value is not kept if,
// since Fill was called, key was deleted or set or the cache was cleared: load may have read an
// older value. It is also not kept if load returns an error, which Fill returns, or if there is
// no room at present.
//
// size is how many bytes value refers to in the process, beyond its own unsafe.Sizeof; the size of
// its encoded form will do.
// Several Fills of one key may run at a time.
func (c *Cache[K, V]) Fill(key K, load func() (value V, size int, err error)) (V, error) {
	mark := c.tier().KeyMark(key) // before the read, which a deletion may overtake
	value, size, err := load()
	if err == nil {
		c.tier().Fill(mark, key, value, size, math.MaxInt64)
	}
	return value, err
}

// Set replaces the value of key by one that is newer than any value that a running Fill loads.
// When Set returns, the former value is gone, even if the new one was not kept because there is
// no room at present. size is as for Fill.
func (c *Cache[K, V]) Set(key K, value V, size int) {
	c.tier().Put(c.tier().KeyMark(key), key, value, size, math.MaxInt64)
}

// Delete ends the value of key: a Get that starts after Delete has returned does not find it.
// Call Delete after the write to the source.
func (c *Cache[K, V]) Delete(key K) { c.tier().Overtake(c.tier().KeyMark(key)) }

// Clear ends the values of all keys. Its cost does not depend on how many there are.
func (c *Cache[K, V]) Clear() { c.tier().Flush() }

// Stats returns a snapshot of the counters. While other calls run, they may not all be of the
// same moment.
func (c *Cache[K, V]) Stats() Stats { return Stats(c.tier().Stats()) }

// Close frees the entries and ends the goroutines of the cache. It waits for calls that are
// running, which takes microseconds, but not for loads. Afterwards Get finds nothing and nothing
// is kept. A second Close waits for the first.
func (c *Cache[K, V]) Close() { c.tier().Close() }
