package tier

import (
	"sync/atomic"
	"unsafe"
)

// A part has the values, or the nulls, of one cache in a store. A nil part is off.
type part[K comparable, V any] struct {
	account
	hash hasher[K] // by value: entries of a closed cache, which a Budget still holds, must not hold the cache
}

// An account is a part as its entries know it.
type account struct {
	store             *store
	front             *front       // or nil
	used, entries     atomic.Int64 // bytes and number of all entries, also those in the queue
	evicted, rejected atomic.Uint64
}

func newPart[K comparable, V any](s *store, hash hasher[K]) *part[K, V] {
	return &part[K, V]{account: account{store: s}, hash: hash}
}

// get returns the entry of key, whether it counts or not, nil if there is none.
func (t *part[K, V]) get(hash, check uint64, key K) *entry[V] {
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

// match returns the entry that begins with h if it is of key and may count.
func (t *part[K, V]) match(h *head, hash, check uint64, key K) *entry[V] {
	if h == nil || h.hash != hash || h.check != check || h.of != &t.account || h.is(gone|superseded) {
		return nil
	}
	if t.hash.kind == compared && (*keyed[K, V])(unsafe.Pointer(h)).key != key {
		return nil
	}
	return entryOf[V](h)
}

// put stores a value that lives as life says. It reports false if there is no room.
func (t *part[K, V]) put(life life, key K, value V, size int) bool {
	e, own := t.newEntry(key)
	rest := own + perEntry
	if int64(size) > min(t.store.budget, maxCost)-rest {
		return false
	}
	e.hash, e.check = t.hash.sum(key)
	e.filled, e.life, e.generation, e.value = life.filled, life.lasts, life.mark.generation(), value
	e.state.Store(uint32(life.mark.stripe()) << 16)
	e.of, e.cost = &t.account, uint32(max(int64(size), 0)+rest)
	t.used.Add(int64(e.cost))
	t.front.fit(t.entries.Add(1))
	return t.store.put(&e.head)
}

// newEntry returns an entry for key and its size.
func (t *part[K, V]) newEntry(key K) (e *entry[V], size int64) {
	if t.hash.kind == compared {
		k := &keyed[K, V]{key: key}
		return &k.entry, int64(unsafe.Sizeof(*k))
	}
	e = new(entry[V])
	return e, int64(unsafe.Sizeof(*e))
}

// A life says from when on an entry counts, and for how long.
type life struct {
	mark   Mark
	filled int64  // by the clock
	lasts  uint32 // in milliseconds
}

// maxCost is the largest entry.cost.
const maxCost = 1<<32 - 1
