package tier

import "sync/atomic"

// An entry is a value or a null. Only its state changes once it is stored.
//
// The fields that a hit reads come first, so that they share a cache line of the processor:
// the head and the first 24 bytes of the value, enough for a pointer, a string, or a slice.
type entry[K comparable, V any] struct {
	head
	value V

	key  K // the zero K if the hashes suffice
	tier *part[K, V]
	cost uint32 // in bytes
}

// A head has the hashes of an entry's key, and for how long the entry counts.
type head struct {
	hash, check uint64
	filled      int64  // by the clock
	life        uint32 // in milliseconds since filled
	generation  uint32 // of its stripe, when the mark was taken
	state       atomic.Uint32
	stripe      uint16
}

// The bits of an entry's state.
const (
	gone       = 1 << iota // ristretto has let go of the entry
	superseded             // the entry is on its way into ristretto, and a newer one will follow
)

// An item is an entry of any cache, as a store sees it.
type item interface {
	header() *head
	bytes() int64

	// letGo is called once for every item that was put into the store, when
	// ristretto no longer has it or will never get it.
	letGo()
	evicted()
	rejected()
}

func (h *head) header() *head       { return h }
func (e *entry[K, V]) bytes() int64 { return int64(e.cost) }
func (e *entry[K, V]) evicted()     { e.tier.evicted.Add(1) }
func (e *entry[K, V]) rejected()    { e.tier.rejected.Add(1) }

func (e *entry[K, V]) letGo() {
	e.state.Or(gone)
	e.tier.front.drop(e)
	e.tier.used.Add(-e.bytes())
	e.tier.entries.Add(-1)
	e.tier.store.used.Add(-e.bytes())
}
