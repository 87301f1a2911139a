package bloom

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sync/atomic"
)

// A table is a set of hashes. For each of its positions it holds one bit, whether it is
// set, or a counter of four bits, how often. It may be read and written concurrently,
// without a lock: readers load whole words, writers change words by atomic operations. A
// read sees every id that was added before it began.
type table struct {
	shape
	a, b      uint64 // from key and seed, odd
	counting  bool
	words     []uint64
	limit     uint64      // saturated: more positions than this are set
	saturated atomic.Bool // written only when it changes

	_   [64]byte      // keeps what Adds write off the cache lines that every read needs
	set atomic.Uint64 // positions
}

// counterBits is the width of a counter.
const counterBits = 4

func newTable(s shape, k key, most float64, counting bool) *table {
	words := s.blocks * blockWords
	if counting {
		words *= counterBits
	}
	h := k.sum("table\x00" + string(binary.LittleEndian.AppendUint64(nil, s.seed)))
	return &table{shape: s, a: h.a | 1, b: h.b | 1, counting: counting, words: make([]uint64, words), limit: s.limit(most)}
}

// perWord is how many positions in a block, of nine bits each, are in one word of a walk.
const perWord = 7

// A walk gives the positions of a hash.
type walk struct {
	first      uint64 // of the block
	word, step uint64
	bits, left uint64 // the unused bits of word, and how many positions they have
}

func (t *table) walk(h hash) walk {
	block, _ := bits.Mul64(h.a*t.a, t.blocks)
	word := h.b * t.b
	return walk{block * blockBits, word, h.a * t.b, word, perWord}
}

func (w *walk) next() (position uint64) {
	if w.left == 0 {
		w.word += w.step
		w.bits, w.left = w.word, perWord
	}
	position = w.first + w.bits%blockBits
	w.bits /= blockBits
	w.left--
	return position
}

// contains reports whether all positions of a hash are set. In a table of bits it reads all of
// them, though the first that is clear would do: a wrong guess which one that is costs a
// processor more than reading the rest of the cache line.
func (t *table) contains(h hash) bool {
	if t.counting {
		return t.counts(h)
	}
	block, word := t.block(h)
	if t.hashes == perWord { // at 1 %
		return seven(block, word)&1 != 0
	}
	all, left := uint64(1), t.hashes
	for ; left >= perWord; left -= perWord {
		all &= seven(block, word)
		word += h.a * t.b
	}
	for ; left > 0; left-- {
		all &= bit(block, word)
		word /= blockBits
	}
	return all&1 != 0
}

func (t *table) counts(h hash) bool {
	w := t.walk(h)
	for range t.hashes {
		if !t.has(w.next()) {
			return false
		}
	}
	return true
}

// block returns, for a table of bits, the block of a hash and the first word of its walk. A walk
// itself is copied through memory, and a processor that reads such a copy too soon waits until
// all before it is done, also the look-up of another id: 140 ns in place of 20.
func (t *table) block(h hash) (block *[blockWords]uint64, word uint64) {
	n, _ := bits.Mul64(h.a*t.a, t.blocks)
	return (*[blockWords]uint64)(t.words[n*blockWords:]), h.b * t.b
}

// bit returns, as its lowest bit, the position of a block that the low bits of word name.
func bit(block *[blockWords]uint64, word uint64) uint64 {
	return atomic.LoadUint64(&block[word/64%blockWords]) >> (word % 64)
}

// seven returns in its lowest bit whether all positions in word are set.
func seven(block *[blockWords]uint64, word uint64) uint64 {
	const b = blockBits
	all := bit(block, word)
	word /= b
	all &= bit(block, word)
	word /= b
	all &= bit(block, word)
	word /= b
	all &= bit(block, word)
	word /= b
	all &= bit(block, word)
	word /= b
	all &= bit(block, word)
	word /= b
	return all & bit(block, word)
}

func (t *table) add(h hash) {
	fresh := uint64(0)
	if t.counting {
		w := t.walk(h)
		for range t.hashes {
			if t.count(w.next(), +1) {
				fresh++
			}
		}
	} else {
		block, word := t.block(h)
		for left := t.hashes; left > 0; left -= perWord {
			for in, i := word, 0; i < min(left, perWord); i++ {
				fresh += set(&block[in/64%blockWords], 1<<(in%64))
				in /= blockBits
			}
			word += h.a * t.b
		}
	}
	if fresh > 0 {
		t.filled(t.set.Add(fresh))
	}
}

func (t *table) addAll(hashes []hash) {
	for _, h := range hashes {
		t.add(h)
	}
}

// remove removes a hash from a counting table. If one of its positions is clear, the hash is
// not in the table, and remove does nothing.
func (t *table) remove(h hash) {
	if !t.contains(h) {
		return
	}
	cleared := uint64(0)
	w := t.walk(h)
	for range t.hashes {
		if t.count(w.next(), -1) {
			cleared++
		}
	}
	if cleared > 0 {
		t.filled(t.set.Add(-cleared))
	}
}

func (t *table) has(p uint64) bool {
	if t.counting {
		return atomic.LoadUint64(&t.words[p/16])>>(p%16*counterBits)&maxCount != 0
	}
	return atomic.LoadUint64(&t.words[p/64])&(1<<(p%64)) != 0
}

// set sets a bit of a word and returns 1 if it was clear. Other goroutines may set other bits of
// the word at the same time.
func set(word *uint64, bit uint64) uint64 {
	if atomic.LoadUint64(word)&bit != 0 || atomic.OrUint64(word, bit)&bit != 0 {
		return 0 // mostly by the load, which does not take the cache line away from readers
	}
	return 1
}

// maxCount is the value at which a counter stays. Its position may have been set more often,
// so counting it down could clear the position while an id still needs it.
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

// filled updates saturated for the number of positions that are set.
func (t *table) filled(set uint64) {
	if full := set > t.limit; full != t.saturated.Load() {
		t.saturated.Store(full)
	}
}

func (t *table) bytes() uint64 { return uint64(len(t.words)) * 8 }

func (t *table) fill() float64 { return float64(t.set.Load()) / float64(t.positions()) }

// load estimates from the set positions how many ids a block holds on average.
func (t *table) load() float64 {
	set := min(t.set.Load(), t.positions()-1) // any number of ids sets all positions
	return load(float64(set)/float64(t.positions()), t.hashes)
}

// rate estimates the share of absent ids that pass.
func (t *table) rate() float64 {
	if l := t.load(); l > 0 {
		return passing(l, t.hashes)
	}
	return 0
}

// ids estimates how many different ids are in the table.
func (t *table) ids() uint64 { return uint64(math.Round(t.load() * float64(t.blocks))) }

// containsMany reports for each of ids what contains would. For up to 64 ids at a time it makes
// the hashes, then touches the block of each, and only then looks for the positions. So the blocks
// come from memory side by side, while contains would wait for each.
func (t *table) containsMany(k key, ids []string) []bool {
	may := make([]bool, len(ids))
	var hashes [64]hash
	for from := 0; from < len(ids); from += len(hashes) {
		part := ids[from:min(from+len(hashes), len(ids))]
		for i, id := range part {
			hashes[i] = k.sum(id)
		}
		for i := range part {
			t.has(t.walk(hashes[i]).first)
		}
		for i := range part {
			may[from+i] = t.contains(hashes[i])
		}
	}
	return may
}

// allTrue returns n times true, the answer of a filter that abstains.
func allTrue(n int) []bool {
	may := make([]bool, n)
	for i := range may {
		may[i] = true
	}
	return may
}
