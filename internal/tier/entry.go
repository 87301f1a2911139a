package tier

import (
	"sync/atomic"
	"unsafe"
)

// An entry is a value or a null. Only its state changes once it is stored.
//
// The fields that a hit reads come first, so that they share a cache line of the processor:
// the head and the first 16 bytes of the value, enough for a pointer or a string.
type entry[V any] struct {
	head
	value V
}

// A keyed is an entry whose hashes do not suffice to know its key.
type keyed[K comparable, V any] struct {
	entry[V]
	key K
}

// A head is the beginning of an entry, as a store sees entries of any cache. It has the hashes of an
// entry's key, and for how long the entry counts.
type head struct {
	hash, check uint64
	filled      int64    // by the clock
	of          *account // tells the type of the entry too: see entryOf
	life        uint32   // in milliseconds since filled
	generation  uint32   // of its stripe, when the mark was taken
	state       atomic.Uint32
	cost        uint32 // in bytes
}

// The bits of an entry's state. The stripe is in the high 16 bits.
const (
	gone       = 1 << iota // ristretto has let go of the entry
	superseded             // the entry is on its way into ristretto, and a newer one will follow
)

func (h *head) stripe() uint16 { return uint16(h.state.Load() >> 16) }

// is reports whether the state has any of these bits.
func (h *head) is(bits uint32) bool { return h.state.Load()&bits != 0 }

// entryOf returns the entry that begins with h, which must be of a part of V.
func entryOf[V any](h *head) *entry[V] { return (*entry[V])(unsafe.Pointer(h)) }

// letGo is called once for every entry that was put into the store, when ristretto no longer
// has it or will never get it.
func (h *head) letGo() {
	h.state.Or(gone)
	h.of.front.drop(h)
	h.of.used.Add(-int64(h.cost))
	h.of.entries.Add(-1)
	h.of.store.used.Add(-int64(h.cost))
}
