package tier

import (
	"sync/atomic"
	"unsafe"
)

// A part is what one cache has in a store: its values, or its nulls. A nil part is off.
type part[K comparable, V any] struct {
	hash  *hasher[K]
	store *store
	front *front[K, V] // or nil

	used, entries     atomic.Int64 // bytes and number of all entries, those in the queue too
	evicted, rejected atomic.Uint64
}

func newPart[K comparable, V any](s *store, hash *hasher[K]) *part[K, V] {
	return &part[K, V]{hash: hash, store: s}
}

// get returns the entry of key, dead or alive.
func (t *part[K, V]) get(hash, check uint64, key K) *entry[K, V] {
	if t == nil {
		return nil
	}
	inner := t.store.inner.Load()
	if inner == nil {
		return nil
	}
	settled := t.store.queue.settled.Load()
	found, _ := inner.Get(hash)
	if e := t.match(found, hash, check, key); e != nil {
		return e
	}
	if e := t.match(t.store.queue.find(hash), hash, check, key); e != nil {
		return e
	}
	if t.store.queue.settled.Load() == settled {
		return nil
	}
	// It may have left the queue between the two looks.
	found, _ = inner.Get(hash)
	return t.match(found, hash, check, key)
}

func (t *part[K, V]) match(it item, hash, check uint64, key K) *entry[K, V] {
	e, _ := it.(*entry[K, V])
	if e == nil || e.state.Load() != 0 || !t.hash.is(&e.head, &e.key, hash, check, &key) {
		return nil
	}
	return e
}

// put completes an entry with what is known of its key, and stores it, unless there is
// no room for it.
func (t *part[K, V]) put(e *entry[K, V], key K, size int) bool {
	rest := int64(unsafe.Sizeof(*e)) + perEntry
	if int64(size) > min(t.store.budget, maxCost)-rest {
		return false
	}
	e.hash, e.check = t.hash.sum(key)
	e.key, e.tier = t.hash.kept(key), t
	e.cost = uint32(max(int64(size), 0) + rest)
	t.used.Add(e.bytes())
	t.front.fit(t.entries.Add(1))
	return t.store.put(e)
}

// maxCost is the most that an entry's cost can say.
const maxCost = 1<<32 - 1
