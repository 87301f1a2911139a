package localcache

import "time"

const Lead = lead

// Settle waits until ristretto has applied what it was given.
func (c *Cache[K, V]) Settle() {
	c.values.inner.Wait()
	if c.nulls != nil {
		c.nulls.inner.Wait()
	}
}

// FillPast is a Fill that has already found its mark to be current.
func (c *Cache[K, V]) FillPast(m Mark, key K, value V) {
	c.values.set(c.hash.sum(key), &entry[K, V]{value: value, stamp: c.stamp(m, time.Minute)}, key, 8)
}

// Hash is what ristretto knows key by.
func (c *Cache[K, V]) Hash(key K) uint64 { return c.hash.sum(key) }

// InFront reports whether the front holds an entry of key.
func (c *Cache[K, V]) InFront(key K) bool { return c.values.front.get(c.hash.sum(key), key) != nil }

// Heat puts the entry of key in the front, as a hit may. It calls between after it
// has found the entry and before it puts it there.
func (c *Cache[K, V]) Heat(key K, between func()) {
	hash := c.hash.sum(key)
	e := c.values.get(hash, key)
	between()
	c.values.front.put(hash, e)
}

// FrontSize is the number of entries in the front.
func (c *Cache[K, V]) FrontSize() (n int) {
	for i := range c.values.front.slots {
		if c.values.front.slots[i].entry.Load() != nil {
			n++
		}
	}
	return n
}

// Enter makes a caller that stays inside until it calls leave.
func (c *Cache[K, V]) Enter() (leave func()) {
	shard := c.calls.shard()
	shard.enter()
	return func() { shard.leave(miss) }
}

// MostBytes and MostQueued are what Stats().Bytes and Queued may not exceed by
// more than one entry for each caller.
func (c *Cache[K, V]) MostBytes() int64  { return c.values.maxUsed }
func (c *Cache[K, V]) MostQueued() int64 { return c.values.margin }

// Queued is the number of bytes in ristretto's queue.
func (c *Cache[K, V]) Queued() int64 { return c.values.queued.Load() }
