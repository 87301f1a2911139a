// Package doorkeeper tells the first miss of an id from those that follow it.
package doorkeeper

import (
	"hash/maphash"
	"sync"
	"time"
)

// A Doorkeeper lets the null of an id into Redis only when the id is missed for
// the second time in a while. Scrapers ask for each absent key once; without it,
// every one of those would stand in Redis for its NullTTL.
//
// It is a Bloom filter with two positions for an id, in two halves: ids are noted
// in the young half and looked for in both, and the halves change places when a
// window has passed or the young one is a quarter full. So an id is remembered for
// one window at least, unless more come than there is room for; then some are
// let in at once, which costs a null in Redis and nothing else.
type Doorkeeper struct {
	seed   maphash.Seed
	window time.Duration

	mu         sync.Mutex // guards what follows
	young, old []uint64   // bits, made with the first null
	set        int        // bits set in young
	until      time.Time  // when young becomes old
}

const doorBits = 1 << 21 // of a half: 256 KiB, and room for 300,000 ids

// New makes a Doorkeeper. It takes its memory, half a megabyte, with the first miss.
func New(window time.Duration) *Doorkeeper {
	return &Doorkeeper{seed: maphash.MakeSeed(), window: window}
}

// Admits notes a miss of id and reports whether it is not the first.
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

// turn forgets the old half. Both are forgotten after a long silence.
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

// has reports whether a bit is set in a half, which may not have been made yet.
func has(half []uint64, bit uint64) bool {
	return half != nil && half[bit/64]&(1<<(bit%64)) != 0
}
