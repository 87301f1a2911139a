package tier

import "time"

// An Entry is what a Cache holds of a key, see [Cache.Inspect].
type Entry[V any] struct {
	Value *V            // nil for a null. Nobody may change it.
	Null  bool          // the key is known not to exist
	Bytes int           // of the budget, with what an entry takes beside its value
	Age   time.Duration // since its fill
	// Filled tells the entry from a later one of the key.
	Filled int64
	Left   time.Duration // of its life; 0: it is over, or a deletion has overtaken it
	Kept   bool          // its life is over and no deletion has overtaken it: [Cache.Kept] may return it
}

// Inspect returns what the cache holds of key, dead or alive, for somebody who looks for a
// fault. ok is false if there is nothing. Inspect is not counted and does not make key
// wanted more.
func (c *Cache[K, V]) Inspect(key K) (e Entry[V], ok bool) {
	if c == nil {
		return e, false
	}
	hash, check := c.hash.sum(key)
	shard := c.calls.shard()
	if !shard.enter() {
		return e, false
	}
	defer shard.leave(other)
	value, null := c.values.get(hash, check, key), c.nulls.get(hash, check, key)
	switch {
	case value != nil && (null == nil || c.counts(&value.head) || !c.counts(&null.head)): // as Get has it
		e = c.inspected(&value.head, value.cost)
		e.Value = &value.value
	case null != nil:
		e = c.inspected(&null.head, null.cost)
		e.Null = true
	default:
		return e, false
	}
	return e, true
}

func (c *Cache[K, V]) inspected(h *head, cost uint32) (e Entry[V]) {
	e.Bytes = int(cost)
	e.Age, e.Filled = max(0, time.Duration(c.clock.now()-h.filled)), h.filled
	if c.counts(h) {
		life := min(time.Duration(h.life)*time.Millisecond, time.Duration(c.maxAge.Load()))
		e.Left = max(1, life-e.Age)
	} else {
		e.Kept = c.current(h)
	}
	return e
}
