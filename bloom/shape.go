package bloom

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"

	"github.com/bits-and-blooms/bloom/v3"
)

// A shape says how a table is laid out. A shared filter stores it beside each snapshot, so
// that every process can read the snapshot whatever its own Capacity is. Snapshots with one
// shape come from one Rebuild, since the seed is random.
type shape struct {
	capacity uint64 // ids that the table is sized for
	blocks   uint64
	hashes   int    // positions of an id, all in one block
	seed     uint64 // decides which ids share positions: an id that passes, found by trying, passes only until the next Rebuild
}

// A block is 512 positions, and all positions of an id are in one block. With one bit each, a
// block is one cache line, and a look-up costs one access to memory (Putze, Sanders and Singler,
// "Cache-, Hash- and Space-Efficient Bloom Filters", 2007).
const (
	blockBits  = 512
	blockWords = blockBits / 64
)

// newShape returns the smallest shape in which capacity ids let at most rate of the absent
// ids pass. An id has as many positions as in a filter of bits-and-blooms. At 1 % a table takes
// 4 % more memory than that filter, since some blocks hold more ids than others.
func newShape(capacity uint64, rate float64, seed uint64) shape {
	_, hashes := bloom.EstimateParameters(uint(min(capacity, 1<<40)), rate)
	blocks := math.Ceil(float64(capacity) / loadFor(rate, int(hashes)))
	return shape{capacity, uint64(min(blocks, math.MaxInt64)), int(hashes), seed}
}

// newSeed returns a random seed for a shape.
func newSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

func (s shape) positions() uint64 { return s.blocks * blockBits }

// passing returns the share of absent ids that pass if a block holds load ids on average. The
// number of ids in a block follows Poisson's distribution; the share of the block that they
// set varies a little, which lets more ids pass than the mean share would.
func passing(load float64, hashes int) float64 {
	if load > 100*blockBits { // all of its positions are set
		return 1
	}
	share, k := 0.0, float64(hashes)
	spread := 10*math.Sqrt(load) + 10
	for ids := math.Floor(max(load-spread, 1)); ids <= load+spread; ids++ {
		logFactorial, _ := math.Lgamma(ids + 1)
		weight := math.Exp(ids*math.Log(load) - load - logFactorial)
		throws := ids * k
		clear := math.Pow(1-1.0/blockBits, throws)
		variance := (clear - (1+throws/blockBits)*clear*clear) / blockBits
		set := 1 - clear
		share += weight * math.Pow(set, k) * (1 + k*(k-1)/2*variance/(set*set))
	}
	return min(share, 1)
}

// loadFor returns the highest load at which at most rate of the absent ids pass.
func loadFor(rate float64, hashes int) float64 {
	low, high := 0.0, blockBits*20.0
	for range 50 {
		if middle := (low + high) / 2; passing(middle, hashes) > rate {
			high = middle
		} else {
			low = middle
		}
	}
	return low
}

// fill returns the share of the positions that are set if a block holds load ids on average;
// load is its inverse.
func fill(load float64, hashes int) float64 { return -math.Expm1(-load * setByOne(hashes)) }
func load(fill float64, hashes int) float64 { return -math.Log1p(-fill) / setByOne(hashes) }

// setByOne returns the share of a block that one id sets.
func setByOne(hashes int) float64 { return 1 - math.Pow(1-1.0/blockBits, float64(hashes)) }

// limit returns how many positions are set when the estimated rate reaches most.
func (s shape) limit(most float64) uint64 {
	if most < 0 || most >= 1 {
		return s.positions()
	}
	return uint64(fill(loadFor(most, s.hashes), s.hashes) * float64(s.positions()))
}

// The bytes of a shape, integers little-endian:
//
//	 0  1, the layout: blocks of 512 positions
//	 1  positions of an id
//	 2  capacity
//	10  blocks
//	18  seed
//	26  CRC-32C of all before
const (
	shapeLayout = 1
	shapeLen    = 30
	maxHashes   = 64
)

var errShape = errors.New("the stored shape is of another release")

func (s shape) encode() string {
	b := append(make([]byte, 0, shapeLen), shapeLayout, byte(s.hashes))
	b = binary.LittleEndian.AppendUint64(b, s.capacity)
	b = binary.LittleEndian.AppendUint64(b, s.blocks)
	b = binary.LittleEndian.AppendUint64(b, s.seed)
	return string(binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)))
}

func decodeShape(text string) (shape, error) {
	b := []byte(text[:min(len(text), shapeLen)])
	if len(text) != shapeLen || crc32.Checksum(b[:shapeLen-4], castagnoli) != binary.LittleEndian.Uint32(b[shapeLen-4:]) {
		return shape{}, errCorrupt
	}
	s := shape{
		hashes: int(b[1]), capacity: binary.LittleEndian.Uint64(b[2:]),
		blocks: binary.LittleEndian.Uint64(b[10:]), seed: binary.LittleEndian.Uint64(b[18:]),
	}
	if b[0] != shapeLayout || s.hashes == 0 || s.hashes > maxHashes || s.blocks == 0 || s.blocks > maxBytes/64 {
		return shape{}, errShape
	}
	return s, nil
}
