package bloom

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// In Redis the table of a generation is cut into pieces, each a bitmap under its own key.
// Growing or freeing a long string stops the server for that time: for a piece of 4 MB,
// about a millisecond.
const (
	pieceBits  = 1 << 25
	pieceBytes = pieceBits / 8
	pieceWords = pieceBits / 64
)

// rangeBytes is how much of a piece is read or written at a time. Larger ranges hardly
// save time, and make other clients of Redis wait longer.
const rangeBytes = 256 << 10

// pieces is the number of pieces of a table of size positions.
func pieces(size uint64) int { return int((size + pieceBits - 1) / pieceBits) }

// piece returns the words of the i-th piece.
func (t *table) piece(i int) []uint64 {
	first := i * pieceWords
	return t.words[first:min(first+pieceWords, len(t.words))]
}

// encodeWords appends what Redis shall store for words. Redis counts the bits of a byte
// from the highest, this process counts those of a word from the lowest.
func encodeWords(to []byte, words []uint64) []byte {
	for _, w := range words {
		to = binary.BigEndian.AppendUint64(to, bits.Reverse64(w))
	}
	return to
}

// decodeWords fills words from what Redis has stored. Bytes that are missing at the end
// are zero, as they are to Redis.
func decodeWords(words []uint64, from string) error {
	if len(from) > len(words)*8 {
		return fmt.Errorf("bloom: a range must have at most %d bytes, got %d", len(words)*8, len(from))
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

// counters returns the words with the counters of the i-th piece of a counting table. In
// Redis they have a key beside that of the piece: 16 MB, which only Adds, Removes and
// Rebuilds use. A copy needs the bits alone.
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

// counterBytes returns how many bytes the counters of the i-th piece have, in a table of
// size positions.
func counterBytes(size uint64, i int) uint64 {
	return min(pieceBits, size-uint64(i)*pieceBits) * counterBits / 8
}
