package bloom

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// ErrParameters reports that a filter of this name is stored with another Secret, or in
// the format of another release.
var ErrParameters = errors.New("bloom: the stored filter was made with other options")

// errHeader reports a header that no version of this package has written.
var errHeader = errors.New("bloom: the stored header is corrupt")

// A header is the part of a filter's record in Redis that never changes. Every script
// compares it with the caller's, so that it does nothing to a later filter of the same
// name. Its bytes:
//
//	 0  "LVBF"
//	 4  2, the version
//	 5  1 if the key comes from the salt, 0 if from a secret
//	 6  salt, random; also makes two records of one name differ
//	22  fingerprint of the key
//	38  CRC-32C of all before, little-endian
type header struct {
	salted      bool
	salt        [16]byte
	fingerprint [16]byte
}

const (
	headerMagic   = "LVBF"
	headerVersion = 2
	headerLen     = 42
)

// newHeader returns a header with a new salt.
func newHeader(o Options) (header, error) {
	h := header{salted: len(o.Secret) == 0}
	_, _ = rand.Read(h.salt[:]) // never fails
	k, err := h.key(o.Secret)
	h.fingerprint = k.fingerprint()
	return h, err
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
	b := append(make([]byte, 0, headerLen), headerMagic...)
	b = append(b, headerVersion, 0)
	if h.salted {
		b[5] = 1
	}
	b = append(append(b, h.salt[:]...), h.fingerprint[:]...)
	return string(binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)))
}

// decodeHeader reads a header. It returns ErrParameters for a header of another version
// of this package, and errHeader for anything else it cannot read.
func decodeHeader(s string) (header, error) {
	var h header
	b := []byte(s)
	n := len(b) - 4
	if n < 5 || n > 64 || crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) || string(b[:4]) != headerMagic {
		return h, errHeader
	}
	if b[4] != headerVersion {
		return h, fmt.Errorf("%w: version %d of the format, this is %d", ErrParameters, b[4], headerVersion)
	}
	if len(b) != headerLen || b[5] > 1 {
		return h, errHeader
	}
	h.salted = b[5] == 1
	copy(h.salt[:], b[6:])
	copy(h.fingerprint[:], b[22:])
	return h, nil
}

// accept returns the key of a stored filter, or ErrParameters if o describes another
// one.
func (h *header) accept(o Options) (key, error) {
	if h.salted != (len(o.Secret) == 0) {
		return key{}, fmt.Errorf("%w: %q was made with a Secret or without, and is opened the other way", ErrParameters, o.Name)
	}
	k, err := h.key(o.Secret)
	if err == nil && h.fingerprint != k.fingerprint() {
		err = fmt.Errorf("%w: %q was made with another Secret", ErrParameters, o.Name)
	}
	return k, err
}
