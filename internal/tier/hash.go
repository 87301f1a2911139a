package tier

import (
	"hash/maphash"
	"reflect"
	"unsafe"
)

// A hasher turns keys into 64 bits by which ristretto finds them, and a check of 64 bits
// more, which tells whether an entry belongs to the key. Both are seeded, so that nobody
// outside the process can choose keys that hash alike.
//
// Comparing keys costs a hit of a string key one more miss of the processor's cache, so
// keys are compared only where hashes do not suffice:
//
//   - The hash of an integer is one to one.
//   - Two strings count as equal if their hashes and their checks are equal, 128 bits
//     under two secret seeds: among a billion keys that happens by chance once in
//     10^21 processes. ristretto itself relies on as many bits, half of them without a
//     seed.
//   - Keys of any other type are compared: interfaces of different types, for instance,
//     may hash alike under every seed.
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

// sum returns the hash and the check of key. It hashes integers and strings itself:
// maphash.Comparable takes 7 ns for an integer, which is a fifth of a hit.
func (h *hasher[K]) sum(key K) (hash, check uint64) {
	switch h.kind { // the kind says what the pointers below point to
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

// mix hashes an integer, one to one, so that no two integers have the same hash. Ids
// differ in their low bits, which the multiplication carries up; the shift brings the
// high bits down to where ristretto takes the number of a shard from.
func (h *hasher[K]) mix(k uint64) uint64 {
	k = (k ^ h.a) * h.b
	k = (k ^ k>>32) * golden
	return k ^ k>>32
}
