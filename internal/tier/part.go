package tier

import (
	"sync/atomic"
	"unsafe"
)

// A part has the values, or the nulls, of one cache in a store. A nil part is off.
type part[K comparable, V any] struct {
	hash  *hasher[K]
	store *store
	front *front[K, V] // or nil

	used, entries     atomic.Int64 // bytes and number of all entries, also those in the queue
	evicted, rejected atomic.Uint64
}

func newPart[K comparable, V any](s *store, hash *hasher[K]) *part[K, V] {
	return &part[K, V]{hash: hash, store: s}
}

// get returns the entry of key, whether it counts or not, nil if there is none.
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
	// The entry may have left the queue for ristretto between the two looks.
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

// put sets the hashes, the key and the cost of e, and stores it. It reports false if there is
// no room.
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

// maxCost is the largest entry.cost.
const maxCost = 1<<32 - 1
