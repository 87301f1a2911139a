package bloom

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// ErrParameters reports that a filter of this name is stored with another Capacity,
// FalsePositiveRate, Secret or Counting, or in another format. To change one of these takes
// another Name, and a process that knows only one of two filters hides its new rows
// from those that ask the other: docs/filter.md says how to go from one to the other.
var ErrParameters = errors.New("bloom: the stored filter was made with other options")

// errHeader reports a header that no version of this package has written.
var errHeader = errors.New("bloom: the stored header is corrupt")

// A header is the part of a filter's record in Redis that never changes. It is made with
// the record, and every script compares it, so that a script does nothing to another
// filter of the same name. Its bytes, integers little-endian:
//
//	 0  "LVBF"
//	 4  1, the version
//	 5  1 if the key comes from the salt, 0 if from a secret
//	 6  positions of an id
//	 7  1 if positions are counted, 0 if not
//	 8  size, the number of positions of the table
//	16  salt, random; also makes two records of one name differ
//	32  fingerprint of the key
//	48  CRC-32C of all before
type header struct {
	salted      bool
	counting    bool
	hashes      int
	size        uint64
	salt        [16]byte
	fingerprint [16]byte
}

const (
	headerMagic   = "LVBF"
	headerVersion = 1
	headerLen     = 52
	maxHashes     = 64
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// newHeader makes a header with a salt of its own, and the key that belongs to it.
func newHeader(o Options) (header, key, error) {
	h := header{salted: len(o.Secret) == 0, counting: o.Counting}
	h.size, h.hashes = o.size()
	_, _ = rand.Read(h.salt[:]) // never fails
	k, err := h.key(o.Secret)
	if err != nil {
		return h, k, err
	}
	h.fingerprint = k.fingerprint()
	return h, k, nil
}

// key derives the key of the filter from the secret, or from the salt if there is
// none.
func (h *header) key(secret []byte) (key, error) {
	if len(secret) == 0 {
		secret = h.salt[:]
	}
	return newKey(secret)
}

// fingerprint differs between keys and does not reveal them.
func (k key) fingerprint() (f [16]byte) {
	h := k.sum("fingerprint")
	binary.LittleEndian.PutUint64(f[:], h.a)
	binary.LittleEndian.PutUint64(f[8:], h.b)
	return f
}

func (h *header) encode() string {
	b := make([]byte, 0, headerLen)
	b = append(b, headerMagic...)
	b = append(b, headerVersion, 0, byte(h.hashes), 0)
	if h.salted {
		b[5] = 1
	}
	if h.counting {
		b[7] = 1
	}
	b = binary.LittleEndian.AppendUint64(b, h.size)
	b = append(b, h.salt[:]...)
	b = append(b, h.fingerprint[:]...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return string(b)
}

// decodeHeader reads a header. It returns ErrParameters for a header of another version
// of this package, and errHeader for anything else it cannot read.
func decodeHeader(s string) (header, error) {
	var h header
	b := []byte(s[:min(len(s), headerLen)])
	if len(s) != headerLen || crc32.Checksum(b[:headerLen-4], castagnoli) != binary.LittleEndian.Uint32(b[headerLen-4:]) {
		return h, errHeader
	}
	if string(b[:4]) != headerMagic || b[7] > 1 || b[5] > 1 {
		return h, errHeader
	}
	if b[4] != headerVersion {
		return h, fmt.Errorf("%w: version %d of the format, this is %d", ErrParameters, b[4], headerVersion)
	}
	h.salted, h.counting = b[5] == 1, b[7] == 1
	h.hashes, h.size = int(b[6]), binary.LittleEndian.Uint64(b[8:])
	copy(h.salt[:], b[16:])
	copy(h.fingerprint[:], b[32:])
	if h.hashes == 0 || h.hashes > maxHashes || h.size == 0 || h.size%64 != 0 || h.size > maxBytes*8 {
		return h, errHeader
	}
	return h, nil
}

// accept returns the key of a stored filter, or ErrParameters if o describes another
// one.
func (h *header) accept(o Options) (key, error) {
	size, hashes := o.size()
	if h.size != size || h.hashes != hashes {
		return key{}, fmt.Errorf("%w: %s", ErrParameters, h.differs(o, hashes))
	}
	if h.counting != o.Counting {
		return key{}, fmt.Errorf("%w: %q was made with Counting or without, and is opened the other way", ErrParameters, o.Name)
	}
	if h.salted != (len(o.Secret) == 0) {
		return key{}, fmt.Errorf("%w: %q was made with a Secret or without, and is opened the other way", ErrParameters, o.Name)
	}
	k, err := h.key(o.Secret)
	if err != nil {
		return k, err
	}
	if h.fingerprint != k.fingerprint() {
		return key{}, fmt.Errorf("%w: %q was made with another Secret", ErrParameters, o.Name)
	}
	return k, nil
}

// differs says in the words of Options why the table of a stored filter is not the one
// that o gives. The stored filter does not know its Options, but the size of its table and
// how many positions an id has, which come from the rate alone.
func (h *header) differs(o Options, hashes int) string {
	if h.hashes != hashes {
		return fmt.Sprintf("%q was made with a FalsePositiveRate from %.2g to %.2g, and is opened with FalsePositiveRate %v",
			o.Name, math.Exp2(-float64(h.hashes)), math.Exp2(1-float64(h.hashes)), o.FalsePositiveRate)
	}
	bits := -math.Log(o.FalsePositiveRate) / (math.Ln2 * math.Ln2) // of an id
	return fmt.Sprintf("%q was made with a Capacity of about %.0f, if its FalsePositiveRate was %v as here, and is opened with Capacity %d",
		o.Name, float64(h.size)/bits, o.FalsePositiveRate, o.Capacity)
}
