// Package doorkeeper tells the first miss of an id from those that follow it.
package doorkeeper

import (
	"hash/maphash"
	"sync"
	"time"
)

// A Doorkeeper admits the null of an id to Redis only when the id is missed for the
// second time within a window or two. Scrapers read each absent key once; without a
// Doorkeeper, Redis would store a null for each of those keys for the NullTTL.
//
// It is a Bloom filter with two positions for an id, in two halves: ids are noted
// in the young half and looked up in both. When a window has passed, or a quarter of
// the young half's bits are set, the young half becomes the old one. So an id is
// remembered for at least one window. If more ids come than there is room for, some
// nulls are admitted at their first miss, which costs a null in Redis and nothing else.
type Doorkeeper struct {
	seed   maphash.Seed
	window time.Duration

	mu         sync.Mutex // guards what follows
	young, old []uint64   // bits, allocated at the first miss
	set        int        // bits set in young
	until      time.Time  // when young becomes old
}

const doorBits = 1 << 21 // bits of a half: 256 KiB, room for 300,000 ids

// New returns a Doorkeeper. Its two halves, half a megabyte, are allocated as misses come.
func New(window time.Duration) *Doorkeeper {
	return &Doorkeeper{seed: maphash.MakeSeed(), window: window}
}

// Admits notes a miss of id and reports whether an earlier one is remembered.
func (d *Doorkeeper) Admits(id string, now time.Time) bool {
	hash := maphash.String(d.seed, id)
	a, b := hash%doorBits, hash>>32%doorBits
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.young == nil || now.After(d.until) || d.set > doorBits/4 {
		d.turn(now)
	}
	known := has(d.young, a) && has(d.young, b) || has(d.old, a) && has(d.old, b)
	d.note(a)
	d.note(b)
	return known
}

// turn makes the young half the old one. After a window more without misses it drops both.
func (d *Doorkeeper) turn(now time.Time) {
	if now.After(d.until.Add(d.window)) {
		d.young = nil
	}
	d.old, d.young = d.young, make([]uint64, doorBits/64)
	d.set = 0
	d.until = now.Add(d.window)
}

func (d *Doorkeeper) note(bit uint64) {
	if !has(d.young, bit) {
		d.young[bit/64] |= 1 << (bit % 64)
		d.set++
	}
}

// has reports whether a bit is set in a half, which may be nil.
func has(half []uint64, bit uint64) bool {
	return half != nil && half[bit/64]&(1<<(bit%64)) != 0
}
