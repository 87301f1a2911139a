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

// A bucket is one line of the processor's cache. tags has a byte of the hash of each slot's entry, which
// saves a look at most entries of other keys. A tag may be wrong for a moment, while two
// calls of put change its slot: then an entry is not found here, and the next hit in ristretto puts it here again.
type bucket struct {
	tags  atomic.Uint64
	slots [ways]atomic.Pointer[head]
}

const (
	ways         = 7
	firstBuckets = 5 // bits: 32 buckets, 224 slots, 2 KiB
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

// tagOf returns the tag of an entry with this hash: bits that choose no bucket.
func tagOf(hash uint64) uint64 { return hash & 0xFF }

// get returns an entry with this hash or nil. The entry may be gone by now.
func (f *front) get(hash uint64) *head {
	b := f.table.Load().bucket(hash)
	tags, tag := b.tags.Load(), tagOf(hash)
	for i := range b.slots {
		if tags>>(8*i)&0xFF == tag {
			if e := b.slots[i].Load(); e != nil && e.hash == hash {
				return e
			}
		}
	}
	return nil
}

// put stores e, the entry of the nth hit in ristretto, if there is room or n is in the sample.
func (f *front) put(e *head, n uint64) {
	b := f.table.Load().bucket(e.hash)
	i := b.free(e.hash)
	if i < 0 {
		if !sampled(n, putBits) {
			return
		}
		i = int(n % ways)
	}
	if b.slots[i].Load() == e && b.tag(i) == tagOf(e.hash) {
		return
	}
	b.slots[i].Store(e)
	b.setTag(i, tagOf(e.hash))
	// ristretto may let go of e while this runs. Then either put sees gone, or
	// ristretto's drop sees e in the slot.
	if e.is(gone) {
		f.drop(e)
	}
}

func (b *bucket) tag(i int) uint64 { return b.tags.Load() >> (8 * i) & 0xFF }

func (b *bucket) setTag(i int, tag uint64) {
	for {
		was := b.tags.Load()
		if b.tags.CompareAndSwap(was, was&^(0xFF<<(8*i))|tag<<(8*i)) {
			return
		}
	}
}

// free returns the number of the slot of hash, or of an empty one, or -1.
func (b *bucket) free(hash uint64) int {
	empty := -1
	for i := range b.slots {
		switch e := b.slots[i].Load(); {
		case e == nil:
			empty = i
		case e.hash == hash:
			return i
		}
	}
	return empty
}

func (f *front) drop(e *head) {
	if f == nil {
		return
	}
	b := f.table.Load().bucket(e.hash)
	for i := range b.slots {
		b.slots[i].CompareAndSwap(e, nil)
	}
}
