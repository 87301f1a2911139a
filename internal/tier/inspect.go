package tier

import "time"

// An Entry describes what a Cache has for a key, see [Cache.Inspect].
type Entry[V any] struct {
	Value *V            // nil for a null. Nobody may change it.
	Null  bool          // the key is known not to exist
	Bytes int           // taken from the budget, for the value and the entry around it
	Age   time.Duration // since the fill
	// Filled tells the entry from a later one of the key.
	Filled int64
	Left   time.Duration // of the life; 0: it is over, or a deletion has overtaken the entry
	Kept   bool          // the life is over and no deletion has overtaken the entry: [Cache.Kept] may return it
}

// Inspect returns the entry of key, even if it no longer counts, for debugging. ok is false if
// there is none. Inspect does not count in Stats or TopKeys.
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
