package tier

import "time"

const (
	Lead      = lead
	MaxQueued = maxQueued
)

// Settle waits until ristretto has applied what it was given.
func (c *Cache[K, V]) Settle() {
	c.values.store.settleAll()
	if c.nulls != nil {
		c.nulls.store.settleAll()
	}
}

// settleAll goes round until the items that follow others have been stored too.
func (s *store) settleAll() {
	for s.inner.Load() != nil {
		s.inner.Load().Wait()
		if s.queue.length.Load() == 0 {
			return
		}
	}
}

// FillPast is a Fill that has already found its mark to be current.
func (c *Cache[K, V]) FillPast(m Mark, key K, value V) {
	c.values.put(c.life(m, time.Minute), key, value, 8)
}

// Hash is what ristretto knows key by.
func (c *Cache[K, V]) Hash(key K) uint64 {
	hash, _ := c.hash.sum(key)
	return hash
}

// InFront reports whether the front holds an entry of key.
func (c *Cache[K, V]) InFront(key K) bool {
	hash, check := c.hash.sum(key)
	return c.values.match(c.values.front.get(hash), hash, check, key) != nil
}

// Heat puts the entry of key in the front, as a hit may. It calls between after it
// has found the entry and before it puts it there.
func (c *Cache[K, V]) Heat(key K, between func()) {
	hash, check := c.hash.sum(key)
	e := c.values.get(hash, check, key)
	between()
	c.values.front.put(&e.head, 0)
}

// FrontSize is the number of entries in the front.
func (c *Cache[K, V]) FrontSize() (n int) {
	for i := range c.values.front.table.Load().buckets {
		b := &c.values.front.table.Load().buckets[i]
		for j := range b {
			if b[j].entry.Load() != nil {
				n++
			}
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

// MostBytes is what Stats().Bytes may not exceed by more than one entry for each caller.
func (c *Cache[K, V]) MostBytes() int64 { return c.values.store.most }

// Queued is the number of items in ristretto's queue.
func (c *Cache[K, V]) Queued() int64 { return c.values.store.queue.length.Load() }

// Counters is how many keys are counted as hot.
func (c *Cache[K, V]) Counters() int {
	c.hot.mu.Lock()
	defer c.hot.mu.Unlock()
	return max(len(c.hot.counters), len(c.hot.rarest))
}
