package localcache

import (
	"hash/maphash"
	"reflect"
	"strings"
)

// A hasher turns keys into the 64 bits that ristretto knows them by. It is
// seeded, so that nobody outside can choose keys with the same hash. The key in
// the entry tells keys apart that have it by chance.
type hasher[K comparable] struct {
	seed    maphash.Seed
	integer bool   // K is int64, int or uint64
	a, b    uint64 // random, b odd
}

func newHasher[K comparable]() hasher[K] {
	seed := maphash.MakeSeed()
	h := hasher[K]{seed: seed, a: maphash.Comparable(seed, 0), b: maphash.Comparable(seed, 1) | 1}
	switch any(new(K)).(type) {
	case *int64, *int, *uint64:
		h.integer = true
	}
	return h
}

// sum hashes the most common types of key itself: maphash.Comparable takes 7 ns
// for an integer, which is a fifth of a hit.
func (h *hasher[K]) sum(key K) uint64 {
	if h.integer {
		switch k := any(key).(type) {
		case int64:
			return h.mix(uint64(k))
		case int:
			return h.mix(uint64(k))
		case uint64:
			return h.mix(k)
		}
	}
	return maphash.Comparable(h.seed, key)
}

// mix is one to one, so that no two integers have the same hash. Ids differ in
// their low bits, which the multiplication carries up; the shift brings the high
// bits down, by which ristretto chooses one of its shards.
func (h *hasher[K]) mix(k uint64) uint64 {
	k = (k ^ h.a) * h.b
	k = (k ^ k>>32) * golden
	return k ^ k>>32
}

// own returns a key that may be stored, and the number of bytes it points to. A
// string is copied, because it may be part of something large, say a request, and
// would keep that alive.
func own[K comparable](key K) (K, int) {
	v := reflect.ValueOf(&key).Elem()
	if v.Kind() != reflect.String {
		return key, 0
	}
	v.SetString(strings.Clone(v.String()))
	return key, v.Len()
}
