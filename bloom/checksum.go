package bloom

import (
	"fmt"
	"math/bits"
	"strconv"
)

// A checksum belongs to a piece: how many of its bits are set, and the sum of its bytes,
// each times its place, counted from one. Any change of a single byte changes the weight,
// and a piece that has lost some bits hardly ever has both numbers right. The scripts that
// set or clear bits update the checksums too, so they are exact at any moment.
type checksum struct{ set, weight uint64 }

// add adds words, the first of which is the from-th word of the piece.
func (c *checksum) add(words []uint64, from int) {
	for i, w := range words {
		if w == 0 {
			continue
		}
		c.set += uint64(bits.OnesCount64(w))
		v, place := bits.Reverse64(w), uint64((from+i)*8+1)
		for j := range uint64(8) {
			c.weight += v >> (56 - 8*j) & 0xff * (place + j)
		}
	}
}

// addBit adds the bit at p in the piece.
func (c *checksum) addBit(p uint64) {
	c.set++
	c.weight += 1 << (7 - p%8) * (p/8 + 1)
}

// dropBit takes the bit at p in the piece away.
func (c *checksum) dropBit(p uint64) {
	c.set--
	c.weight -= 1 << (7 - p%8) * (p/8 + 1)
}

// checksumsOf returns the checksums of all pieces of a table of bits.
func checksumsOf(t *table) []checksum {
	checksums := make([]checksum, pieces(uint64(len(t.words))*64))
	for i := range checksums {
		checksums[i].add(t.piece(i), 0)
	}
	return checksums
}

// encodeChecksums returns the fields and values of the hash in Redis: n<i> and w<i> for
// the i-th piece, and n, the total of the n<i>.
func encodeChecksums(checksums []checksum) []any {
	total := uint64(0)
	fields := make([]any, 0, 4*len(checksums)+2)
	for i, c := range checksums {
		n := strconv.Itoa(i)
		fields = append(fields, "n"+n, c.set, "w"+n, c.weight)
		total += c.set
	}
	return append(fields, "n", total)
}

// decodeChecksums reads the checksums of n pieces. All must be there and fit together.
func decodeChecksums(fields []string, n int) ([]checksum, error) {
	values := make(map[string]uint64, len(fields)/2)
	for i := 0; i+1 < len(fields); i += 2 {
		v, err := strconv.ParseUint(fields[i+1], 10, 63)
		if err != nil {
			return nil, fmt.Errorf("bloom: checksum %.20q must be a number, got %.40q", fields[i], fields[i+1])
		}
		values[fields[i]] = v
	}
	total, ok := values["n"]
	if !ok || len(values) != 2*n+1 {
		return nil, fmt.Errorf("bloom: %d pieces must have %d checksums, got %d", n, 2*n+1, len(values))
	}
	checksums := make([]checksum, n)
	for i := range checksums {
		set, ok1 := values["n"+strconv.Itoa(i)]
		weight, ok2 := values["w"+strconv.Itoa(i)]
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("bloom: no checksum of piece %d", i)
		}
		checksums[i] = checksum{set, weight}
		total -= set
	}
	if total != 0 {
		return nil, fmt.Errorf("bloom: the total of the checksums must be that of the pieces, got %d more", int64(total))
	}
	return checksums, nil
}
