package tier

import "sync/atomic"

// A front is a table of entries in front of ristretto, which grows with their number. A hit
// in ristretto takes a lock that all readers of a key share, looks into a map, and enters
// and leaves the callCounter. A hit in the front does none of this: the cores that read
// one hot key do not wait for each other, and a hit of any key costs two misses of the
// processor's cache, for the slot and the entry.
//
// A hit in ristretto puts its entry into the front if there is room in its bucket. If not,
// only one hit in 64 does, so that the hotter entries stay. An entry leaves when another
// takes its slot, or when ristretto lets go of it. Cache.counts judges it like any entry:
// the front decides how fast a hit is, never what it finds.
//
// A nil front is off.
type front struct {
	table atomic.Pointer[table]
}

type table struct {
	buckets []bucket
	shift   uint // a hash shifted right by it is the number of the bucket
}

// A bucket is two neighbouring lines of the processor's cache. An entry is in the slot
// that its hash names or, if that is taken, in another one, first of the same line.
type bucket [ways]slot

type slot struct {
	hash  atomic.Uint64 // saves a look at the entry of another key
	entry atomic.Pointer[head]
}

const (
	ways         = 8
	firstBuckets = 5 // bits: 32 buckets, 256 slots, 4 KiB
	mostBuckets  = 20

	// One hit in 64 in ristretto may take the slot of another entry. One hit in 16 in the
	// front goes on to ristretto, which has to know which entries are read often; only one
	// in 64 while ristretto has so much room that it need not choose.
	putBits       = 6
	passBits      = 4
	roomyPassBits = 6
)

// sampled reports whether n is in the sample of one in 1<<bits. The sample is even but
// has no period: if callers read keys in turn, a period might pick the same few keys each time.
func sampled(n uint64, bits int) bool { return n*golden>>(64-bits) == 0 }

// golden is 2^64 divided by the golden ratio.
const golden = 0x9E3779B97F4A7C15

func newFront() *front {
	f := &front{}
	f.table.Store(newTable(firstBuckets))
	return f
}

func newTable(bits uint) *table {
	return &table{buckets: make([]bucket, 1<<bits), shift: 64 - bits}
}

func (t *table) bucket(hash uint64) *bucket { return &t.buckets[hash>>t.shift] }

// fit makes a larger table if there are entries for three quarters of the slots. The new
// table is empty, which costs each entry one hit in ristretto.
func (f *front) fit(entries int64) {
	if f == nil {
		return
	}
	t := f.table.Load()
	if bits := 64 - t.shift; entries > int64(len(t.buckets)*ways*3/4) && bits < mostBuckets {
		f.table.CompareAndSwap(t, newTable(bits+1))
	}
}

// get returns an entry with this hash or nil. The entry may be gone by now.
func (f *front) get(hash uint64) *head {
	b := f.table.Load().bucket(hash)
	first := hash % ways
	for i := range uint64(ways) {
		if s := &b[first^i]; s.hash.Load() == hash {
			return s.entry.Load()
		}
	}
	return nil
}

// put stores e, the entry of the nth hit in ristretto, if there is room or n is in the sample.
func (f *front) put(e *head, n uint64) {
	b := f.table.Load().bucket(e.hash)
	s := b.free(e.hash)
	if s == nil {
		if !sampled(n, putBits) {
			return
		}
		s = &b[n%ways]
	}
	if s.entry.Load() == e {
		return
	}
	s.entry.Store(e)
	s.hash.Store(e.hash)
	// ristretto may let go of e while this runs. Then either put sees gone, or
	// ristretto's drop sees e in the slot.
	if e.is(gone) {
		f.drop(e)
	}
}

// free returns the slot of hash, or an empty one, or nil.
func (b *bucket) free(hash uint64) (empty *slot) {
	first := hash % ways
	for i := range uint64(ways) {
		switch s := &b[first^i]; {
		case s.hash.Load() == hash:
			return s
		case empty == nil && s.entry.Load() == nil:
			empty = s
		}
	}
	return empty
}

func (f *front) drop(e *head) {
	if f == nil {
		return
	}
	b := f.table.Load().bucket(e.hash)
	for i := range b {
		b[i].entry.CompareAndSwap(e, nil)
	}
}
