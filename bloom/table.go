package bloom

import "sync/atomic"

// counterBits is the width of a counter.
const counterBits = 4

// A table holds for each of its positions one bit, whether it is set, or a counter,
// how often. It may be read and written concurrently, without a lock: readers load
// whole words, writers change words by atomic operations. A read sees every position
// that was set before it began.
type table struct {
	words    []uint64
	counting bool
}

// newTable makes a table of the given number of positions, a multiple of 64.
func newTable(positions uint64, counting bool) table {
	words := positions / 64
	if counting {
		words *= counterBits
	}
	return table{make([]uint64, words), counting}
}

func (t *table) has(p uint64) bool {
	if t.counting {
		return atomic.LoadUint64(&t.words[p/16])>>(p%16*counterBits)&maxCount != 0
	}
	return atomic.LoadUint64(&t.words[p/64])&(1<<(p%64)) != 0
}

// set sets a position, or counts it once more, and reports whether it was clear.
func (t *table) set(p uint64) bool {
	if t.counting {
		return t.count(p, +1)
	}
	word, bit := &t.words[p/64], uint64(1)<<(p%64)
	if atomic.LoadUint64(word)&bit != 0 {
		return false // the common case: a load does not take the cache line away from readers
	}
	return atomic.OrUint64(word, bit)&bit == 0
}

// clear clears a position of a table of bits and reports whether it was set.
func (t *table) clear(p uint64) bool {
	bit := uint64(1) << (p % 64)
	return atomic.AndUint64(&t.words[p/64], ^bit)&bit != 0
}

// bits returns a table of bits with the same positions set: a table of bits returns
// itself. A counting table must not be written meanwhile.
func (t *table) bits() table {
	if !t.counting {
		return *t
	}
	bits := newTable(uint64(len(t.words))*64/counterBits, false)
	for p := range uint64(len(bits.words)) * 64 {
		if t.has(p) {
			bits.words[p/64] |= 1 << (p % 64)
		}
	}
	return bits
}

// unset counts a position of a counting table once less and reports whether it is
// clear since.
func (t *table) unset(p uint64) bool { return t.count(p, -1) }

// maxCount is where a counter stays. Its position may have been set more often, so
// counting it down could clear it while an id still needs it.
const maxCount = 1<<counterBits - 1

// count changes a counter by one and reports whether it left or reached zero.
func (t *table) count(p uint64, by int) bool {
	word, shift := &t.words[p/16], p%16*counterBits
	for {
		old := atomic.LoadUint64(word)
		n := old >> shift & maxCount
		if n == maxCount || n == 0 && by < 0 {
			return false
		}
		changed := old + uint64(by)<<shift
		if atomic.CompareAndSwapUint64(word, old, changed) {
			return n == 0 || n == 1 && by < 0
		}
	}
}

func (t *table) bytes() uint64 { return uint64(len(t.words)) * 8 }
