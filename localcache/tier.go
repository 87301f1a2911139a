package localcache

import (
	"sync/atomic"
	"unsafe"

	"github.com/dgraph-io/ristretto/v2"
)

// An entry is a value or a null with its key. It does not change once it is set.
type entry[K comparable, V any] struct {
	value V
	key   K
	stamp
}

// stamp says for how long an entry counts.
type stamp struct {
	generation uint64 // of its stripe, when the mark was taken
	filled     int64  // by the clock
	life       int64  // in nanoseconds since filled
	stripe     uint16
	cost       atomic.Uint32 // in bytes, plus gone
}

// gone marks an entry that ristretto has let go of.
const gone = 1 << 31

// perEntry is how many bytes ristretto and the allocator take for an entry beside
// the entry itself, as measured.
const perEntry = 210

// A tier is a ristretto, keyed by hash, that keeps to its budget. A nil tier is
// off.
//
// ristretto alone exceeds its budget in two ways: it does not count the entries in
// its queue, and it evicts only for new keys, so values that grow when they are
// overwritten evict nothing. So the tier counts for itself. It adds the size of an
// entry before ristretto gets it, and subtracts it when ristretto says that it has
// let go of it.
type tier[K comparable, V any] struct {
	hash  hasher[K]
	front *front[K, V] // or nil
	inner *ristretto.Cache[uint64, *entry[K, V]]

	used    atomic.Int64 // bytes of all entries, those in the queue too
	queued  atomic.Int64 // bytes in the queue
	maxUsed int64
	margin  int64 // the most that may be queued

	evicted, rejected atomic.Uint64
}

func newTier[K comparable, V any](budget int64, hash hasher[K]) *tier[K, V] {
	// Entries of 4 MiB in all are fewer than 32,768. From that many in its queue on,
	// ristretto drops what it is given, and if that is an update, silently.
	margin := min(max(budget/16, 1<<20), 4<<20)
	t := &tier[K, V]{hash: hash, margin: margin, maxUsed: budget + margin}
	inner, err := ristretto.NewCache(&ristretto.Config[uint64, *entry[K, V]]{
		NumCounters:        min(budget/64, 1<<26), // at least four for each entry, of 4 bytes each
		MaxCost:            budget,
		BufferItems:        64,
		IgnoreInternalCost: true, // perEntry has it, and more exactly
		KeyToHash:          func(hash uint64) (uint64, uint64) { return hash, 0 },
		Cost:               t.dequeued,
		OnEvict:            func(i *ristretto.Item[*entry[K, V]]) { t.lost(&t.evicted, i.Value) },
		OnReject:           func(i *ristretto.Item[*entry[K, V]]) { t.lost(&t.rejected, i.Value) },
		OnExit:             t.freed,
	})
	if err != nil {
		panic("localcache: " + err.Error()) // it objects to nothing but zeros and negatives
	}
	t.inner = inner
	return t
}

func (t *tier[K, V]) get(hash uint64, key K) *entry[K, V] {
	if t == nil {
		return nil
	}
	e, _ := t.inner.Get(hash)
	if e == nil || e.key != key {
		return nil
	}
	return e
}

// set completes e and hands it to ristretto, unless there is no room for it.
func (t *tier[K, V]) set(hash uint64, e *entry[K, V], key K, size int) bool {
	kept, keySize := own(key)
	rest := int64(unsafe.Sizeof(*e)) + int64(keySize) + perEntry
	if int64(size) > min(t.inner.MaxCost(), gone-1)-rest {
		return false
	}
	cost := max(int64(size), 0) + rest
	e.key = kept
	e.cost.Store(uint32(cost))
	if t.used.Add(cost) <= t.maxUsed {
		return t.enqueue(hash, e)
	}
	t.freed(e)
	t.evictOne(hash)
	return false
}

// evictOne makes room when the tier is over its budget, which happens when updates
// grow. ristretto evicts only for new keys, so evictOne stores a nil for hash: it
// frees the old value of this key at once, or makes ristretto evict for a new one.
func (t *tier[K, V]) evictOne(hash uint64) { t.enqueue(hash, nil) }

func (t *tier[K, V]) enqueue(hash uint64, e *entry[K, V]) bool {
	cost := e.bytes()
	// One entry may always be in the queue, however large it is.
	if queued := t.queued.Add(cost); (queued <= t.margin || queued == cost) && t.inner.Set(hash, e, 0) {
		return true
	}
	t.queued.Add(-cost)
	t.freed(e)
	return false
}

// bytes is the cost of an entry. A nil entry costs perEntry.
func (e *entry[K, V]) bytes() int64 {
	if e == nil {
		return perEntry
	}
	return int64(e.cost.Load() &^ gone)
}

// ristretto calls the following, from its goroutine and from inside of Set.

// dequeued gives the cost of an entry, which ristretto asks for when the entry
// leaves the queue.
func (t *tier[K, V]) dequeued(e *entry[K, V]) int64 {
	t.queued.Add(-e.bytes())
	return e.bytes()
}

// freed is called once for every entry that ristretto was given and has no longer.
func (t *tier[K, V]) freed(e *entry[K, V]) {
	if e != nil {
		e.cost.Or(gone)
		if t.front != nil {
			t.front.drop(t.hash.sum(e.key), e)
		}
		t.used.Add(-e.bytes())
	}
}

func (t *tier[K, V]) lost(counter *atomic.Uint64, e *entry[K, V]) {
	if e != nil {
		counter.Add(1)
	}
}

func (t *tier[K, V]) close() {
	if t != nil {
		t.inner.Close()
	}
}
