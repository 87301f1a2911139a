package tier

import (
	"hash/maphash"
	"reflect"
	"unsafe"
)

// A hasher turns keys into the 64 bits that ristretto knows them by, and 64 more by
// which an entry knows whether it is the one that was asked for. Both are seeded, so
// that nobody outside can choose keys that hash alike.
//
// Comparing keys costs one more miss of the processor's cache in a hit of a string,
// which is why they are compared only where hashes do not suffice:
//
//   - The hash of an integer is one to one. Its check only tells the caches of a
//     [Budget] apart.
//   - Two strings are taken for one if their hashes and their checks are equal, which
//     are 128 bits under two secret seeds: among a billion keys by chance once in
//     10^21 processes. bare ristretto relies on as many bits, half of them without a
//     seed.
//   - Any other key is compared. Interfaces of different types hash alike, for
//     instance, under every seed.
type hasher[K comparable] struct {
	kind  keyKind
	size  uintptr // of K, if it is an integer
	seeds [2]maphash.Seed
	a, b  uint64 // random, b odd
}

type keyKind uint8

const (
	compared keyKind = iota
	integer
	text
)

func newHasher[K comparable]() hasher[K] {
	h := hasher[K]{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	h.a, h.b = maphash.Comparable(h.seeds[0], 0), maphash.Comparable(h.seeds[1], 1)|1
	switch t := reflect.TypeFor[K](); t.Kind() {
	case reflect.String:
		h.kind = text
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		h.kind, h.size = integer, t.Size()
	}
	return h
}

// sum hashes the most common types of key itself: maphash.Comparable takes 7 ns
// for an integer, which is a fifth of a hit.
func (h *hasher[K]) sum(key K) (hash, check uint64) {
	switch h.kind { // which says what is behind the pointer
	case integer:
		return h.mix(number(unsafe.Pointer(&key), h.size)), h.a
	case text:
		s := *(*string)(unsafe.Pointer(&key))
		return maphash.String(h.seeds[0], s), maphash.String(h.seeds[1], s)
	}
	return maphash.Comparable(h.seeds[0], key), h.a
}

// number reads an integer of size bytes.
func number(p unsafe.Pointer, size uintptr) uint64 {
	switch size {
	case 8:
		return *(*uint64)(p)
	case 4:
		return uint64(*(*uint32)(p))
	case 2:
		return uint64(*(*uint16)(p))
	}
	return uint64(*(*uint8)(p))
}

// mix is one to one, so that no two integers have the same hash. Ids differ in
// their low bits, which the multiplication carries up; the shift brings the high
// bits down, by which ristretto chooses one of its shards.
func (h *hasher[K]) mix(k uint64) uint64 {
	k = (k ^ h.a) * h.b
	k = (k ^ k>>32) * golden
	return k ^ k>>32
}

// kept is what an entry keeps of its key: nothing if the hashes suffice.
func (h *hasher[K]) kept(key K) (kept K) {
	if h.kind == compared {
		return key
	}
	return kept
}

// is reports whether e is the entry of key, whose hash and check are given.
func (h *hasher[K]) is(e *head, kept *K, hash, check uint64, key *K) bool {
	return e.hash == hash && e.check == check && (h.kind != compared || *kept == *key)
}
