package localcache

import "sync/atomic"

// A front is a small table of the hottest entries, before ristretto. A hit in
// ristretto takes a lock that all readers of a key share, and enters and leaves the
// callCounter. A hit in the front does neither: the cores that read one hot key do
// not wait for each other.
//
// One hit in many puts its entry here, so that only hot ones get in. An entry
// leaves when another takes its slot, or when ristretto lets go of it. It
// counts under the same conditions as everywhere: the front decides how fast a
// hit is, never what it finds.
type front[K comparable, V any] struct {
	slots [1 << frontBits]slot[K, V]
}

const (
	frontBits = 9

	// One hit in 64 in ristretto puts the entry in the front. One hit in 16 in the
	// front goes on to ristretto, which has to know which entries are wanted.
	putBits  = 6
	passBits = 4
)

// sampled picks one n in 1<<bits, evenly but without a period: if callers ask for
// keys in turn, a period might pick the same few keys each time.
func sampled(n uint64, bits int) bool { return n*golden>>(64-bits) == 0 }

// golden is 2^64 divided by the golden ratio.
const golden = 0x9E3779B97F4A7C15

type slot[K comparable, V any] struct {
	hash  atomic.Uint64 // saves a look at the entry of another key
	entry atomic.Pointer[entry[K, V]]
}

func (f *front[K, V]) slot(hash uint64) *slot[K, V] { return &f.slots[hash>>(64-frontBits)] }

func (f *front[K, V]) get(hash uint64, key K) *entry[K, V] {
	s := f.slot(hash)
	if s.hash.Load() != hash {
		return nil
	}
	e := s.entry.Load()
	if e == nil || e.key != key {
		return nil
	}
	return e
}

func (f *front[K, V]) put(hash uint64, e *entry[K, V]) {
	s := f.slot(hash)
	if s.entry.Load() == e {
		return
	}
	s.entry.Store(e)
	s.hash.Store(hash)
	// ristretto may let go of e while this runs. Then either put sees gone, or
	// ristretto's drop sees e in the slot.
	if e.cost.Load()&gone != 0 {
		f.drop(hash, e)
	}
}

func (f *front[K, V]) drop(hash uint64, e *entry[K, V]) {
	f.slot(hash).entry.CompareAndSwap(e, nil)
}
