package bloom

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// A hash stands for an id: 128 bits that nobody without the key can compute or choose.
type hash struct{ a, b uint64 }

// A key is the key of SipHash.
type key struct{ k0, k1 uint64 }

// newKey derives the key from a secret of any length, or makes a random one.
func newKey(secret []byte) (key, error) {
	if len(secret) == 0 {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		return keyOf(b[:]), nil
	}
	b, err := hkdf.Key(sha256.New, secret, nil, "levee/bloom: SipHash-2-4-128", 16)
	if err != nil { // in FIPS mode, for secrets that it finds too short
		return key{}, fmt.Errorf("bloom: Secret: %w", err)
	}
	return keyOf(b), nil
}

func keyOf(b []byte) key {
	return key{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
}

// sum returns the SipHash-2-4 of s, with 128 bits of output (Aumasson and Bernstein,
// "SipHash: a fast short-input PRF", and its reference implementation). The standard library
// has no keyed hash for a read path: maphash has a seed per process, and HMAC
// takes five times as long.
func (k key) sum(s string) hash {
	v0 := k.k0 ^ 0x736f6d6570736575
	v1 := k.k1 ^ 0x646f72616e646f6d ^ 0xee
	v2 := k.k0 ^ 0x6c7967656e657261
	v3 := k.k1 ^ 0x7465646279746573

	last := uint64(len(s)) << 56
	for ; len(s) >= 8; s = s[8:] {
		m := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		v3 ^= m
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0 ^= m
	}
	for i := range len(s) {
		last |= uint64(s[i]) << (8 * i)
	}
	v3 ^= last
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= last

	v2 ^= 0xee
	for range 4 {
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	}
	a := v0 ^ v1 ^ v2 ^ v3
	v1 ^= 0xdd
	for range 4 {
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	}
	return hash{a, v0 ^ v1 ^ v2 ^ v3}
}

// appendSums appends the hashes of ids.
func (k key) appendSums(to []hash, ids []string) []hash {
	for _, id := range ids {
		to = append(to, k.sum(id))
	}
	return to
}

func sipRound(v0, v1, v2, v3 uint64) (uint64, uint64, uint64, uint64) {
	v0 += v1
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v3
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 += v3
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}
