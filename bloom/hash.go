package bloom

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/bits"
)

// A hash stands for an id: 128 bits that nobody without the key can compute or choose.
type hash struct{ a, b uint64 }

// A key is the key of SipHash, or one that never leaves the process.
type key struct {
	k0, k1 uint64
	seed   maphash.Seed // of a quick key
	quick  bool
}

// newLocalKey returns the key of a filter in one process. Without a secret, nothing outside the
// process depends on the hash. Then it is that of Go's maps, which computes with the AES
// instructions of the processor.
//
// SipHash would double the time of a MayContain beyond what it takes itself, 18 ns: the look-ups
// of two calls wait for memory at the same time only if the second one's address is known before
// the processor has run out of registers to go ahead with.
func newLocalKey(secret []byte) (key, error) {
	if len(secret) == 0 {
		return key{seed: maphash.MakeSeed(), quick: true}, nil
	}
	return newKey(secret)
}

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
	return key{k0: binary.LittleEndian.Uint64(b), k1: binary.LittleEndian.Uint64(b[8:])}
}

// sum returns the hash of s.
func (k key) sum(s string) hash {
	if k.quick {
		h := maphash.String(k.seed, s)
		return hash{h, bits.ReverseBytes64(h)}
	}
	return k.sipHash(s)
}

// sipHash returns the SipHash-2-4 of s, with 128 bits of output (Aumasson and Bernstein,
// "SipHash: a fast short-input PRF", and its reference implementation). The standard library
// has no such hash that processes can share: a seed of maphash stays in its process, and HMAC
// takes five times as long.
func (k key) sipHash(s string) hash {
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
	switch n := len(s); { // reads that overlap: a loop over up to seven bytes takes as long as a round
	case n >= 4:
		last |= uint64(le32(s)) | uint64(le32(s[n-4:]))<<(8*(n-4))
	case n > 0:
		last |= uint64(s[0]) | uint64(s[n/2])<<(8*(n/2)) | uint64(s[n-1])<<(8*(n-1))
	}
	v3 ^= last
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= last

	v2 ^= 0xee
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	a := v0 ^ v1 ^ v2 ^ v3
	v1 ^= 0xdd
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	return hash{a, v0 ^ v1 ^ v2 ^ v3}
}

// le32 returns the first four bytes of s as an integer.
func le32(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
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
