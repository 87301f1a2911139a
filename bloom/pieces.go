package bloom

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
)

// In Redis the table of a generation is cut into pieces, each a bitmap of its own:
// to grow a string to its size, and to free it, takes the server time in which it
// does nothing else. A piece of 4 MB takes it about a millisecond.
const (
	pieceBits  = 1 << 25
	pieceBytes = pieceBits / 8
	pieceWords = pieceBits / 64
)

// rangeBytes is how much of a piece is read or written at a time. Larger ranges
// hardly save time and hold others up longer.
const rangeBytes = 256 << 10

// pieces is the number of pieces of a table of size positions.
func pieces(size uint64) int { return int((size + pieceBits - 1) / pieceBits) }

// piece returns the words of the i-th piece.
func (t *table) piece(i int) []uint64 {
	first := i * pieceWords
	return t.words[first:min(first+pieceWords, len(t.words))]
}

// Redis counts the bits of a byte from the highest, a word from the lowest.

// encodeWords appends what Redis shall store for words.
func encodeWords(to []byte, words []uint64) []byte {
	for _, w := range words {
		to = binary.BigEndian.AppendUint64(to, bits.Reverse64(w))
	}
	return to
}

// decodeWords fills words from what Redis has stored, at most as many bytes.
// Missing ones are zero, as they are to Redis.
func decodeWords(words []uint64, from string) error {
	if len(from) > len(words)*8 {
		return fmt.Errorf("bloom: %d bytes for a range of %d", len(from), len(words)*8)
	}
	var b [8]byte
	for i := range words {
		n := copy(b[:], from)
		clear(b[n:])
		from = from[n:]
		words[i] = bits.Reverse64(binary.BigEndian.Uint64(b[:]))
	}
	return nil
}

// The counters of a piece lie beside it: 16 MB, which only adds, Removes and Rebuilds
// touch. Processes that ask need the bits alone.

// counters returns the words with the counters of the i-th piece of a counting table.
func (t *table) counters(i int) []uint64 {
	first := i * pieceWords * counterBits
	return t.words[first:min(first+pieceWords*counterBits, len(t.words))]
}

// encodeCounters appends what Redis shall store for words of counters: two to a byte,
// the even one in its high half.
func encodeCounters(to []byte, words []uint64) []byte {
	const even = 0x0f0f_0f0f_0f0f_0f0f
	for _, w := range words {
		to = binary.LittleEndian.AppendUint64(to, w>>counterBits&even|w&even<<counterBits)
	}
	return to
}

// counterBytes is how much the counters of the i-th piece take, of a table of size
// positions.
func counterBytes(size uint64, i int) uint64 {
	return min(pieceBits, size-uint64(i)*pieceBits) * counterBits / 8
}

// A sum is what a piece adds up to: how many bits are set, and the sum of its bytes
// each times its place, counted from one. Whatever happens to a single byte changes
// the second; a piece that lost a part of its bits hardly has both right. Adds keep
// sums in the same script that sets the bits, so they are exact at any moment.
type sum struct{ set, weight uint64 }

// add adds words to the sum, which lie in their piece from the given one on.
func (s *sum) add(words []uint64, from int) {
	for i, w := range words {
		if w == 0 {
			continue
		}
		s.set += uint64(bits.OnesCount64(w))
		v, place := bits.Reverse64(w), uint64((from+i)*8+1)
		for j := range uint64(8) {
			s.weight += v >> (56 - 8*j) & 0xff * (place + j)
		}
	}
}

// addBit adds one bit, at p in its piece.
func (s *sum) addBit(p uint64) {
	s.set++
	s.weight += 1 << (7 - p%8) * (p/8 + 1)
}

// dropBit takes one bit away again.
func (s *sum) dropBit(p uint64) {
	s.set--
	s.weight -= 1 << (7 - p%8) * (p/8 + 1)
}

// sumsOf adds up all pieces of a table.
func sumsOf(t *table) []sum {
	sums := make([]sum, pieces(uint64(len(t.words))*64))
	for i := range sums {
		sums[i].add(t.piece(i), 0)
	}
	return sums
}

// encodeSums gives the fields and values to store.
func encodeSums(sums []sum) []any {
	total := uint64(0)
	fields := make([]any, 0, 4*len(sums)+2)
	for i, s := range sums {
		n := strconv.Itoa(i)
		fields = append(fields, "n"+n, s.set, "w"+n, s.weight)
		total += s.set
	}
	return append(fields, "n", total)
}

// decodeSums reads the sums of n pieces from fields and values. All must be there
// and fit together.
func decodeSums(fields []string, n int) ([]sum, error) {
	values := make(map[string]uint64, len(fields)/2)
	for i := 0; i+1 < len(fields); i += 2 {
		v, err := strconv.ParseUint(fields[i+1], 10, 63)
		if err != nil {
			return nil, fmt.Errorf("bloom: sum %.20q is %.40q", fields[i], fields[i+1])
		}
		values[fields[i]] = v
	}
	total, ok := values["n"]
	if !ok || len(values) != 2*n+1 {
		return nil, fmt.Errorf("bloom: %d sums for %d pieces", len(values), n)
	}
	sums := make([]sum, n)
	for i := range sums {
		set, ok1 := values["n"+strconv.Itoa(i)]
		weight, ok2 := values["w"+strconv.Itoa(i)]
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("bloom: no sums for piece %d", i)
		}
		sums[i] = sum{set, weight}
		total -= set
	}
	if total != 0 {
		return nil, fmt.Errorf("bloom: the sums of the pieces differ from their total by %d", int64(total))
	}
	return sums, nil
}
