package bloom

import (
	"sync"
	"time"
)

// maxBatch is how many adds one batch keeps: 2 MB, and there are two.
const maxBatch = 1 << 17

// recent keeps the hashes added within the last span, and at most as long again,
// for the next Rebuild: a row may have been added before its scan begins and be
// committed behind it. When more are added than it can keep, it remembers how long
// what it has lost matters.
type recent struct {
	span time.Duration // not positive: nothing is kept
	room int           // of a batch

	mu       sync.Mutex // guards what follows
	now, old batch
	lost     time.Time // until then a row may commit that is in neither
}

type batch struct {
	hashes      []hash
	begun, last time.Time
}

func (r *recent) push(hashes []hash) {
	if r.span <= 0 {
		return
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(hashes) > 0 {
		part := hashes[:min(len(hashes), r.room)]
		hashes = hashes[len(part):]
		if now.Sub(r.now.begun) >= r.span || len(r.now.hashes)+len(part) > r.room {
			r.turn(now)
		}
		r.now.hashes = append(r.now.hashes, part...)
		r.now.last = now
	}
}

// turn begins a new batch and forgets the older one.
func (r *recent) turn(now time.Time) {
	if r.matters(r.old, now) {
		r.lost = r.old.last.Add(r.span)
	}
	reuse := r.old.hashes[:0]
	r.old = r.now
	r.now = batch{hashes: reuse, begun: now}
}

// matters tells whether a row of b may still be uncommitted.
func (r *recent) matters(b batch, now time.Time) bool {
	return len(b.hashes) > 0 && now.Sub(b.last) < r.span
}

// take returns what is kept, and how long to wait for the rows of what is lost to
// be committed.
func (r *recent) take() (kept []hash, wait time.Duration) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range []batch{r.old, r.now} {
		if r.matters(b, now) {
			kept = append(kept, b.hashes...)
		}
	}
	return kept, r.lost.Sub(now)
}

// drop forgets everything.
func (r *recent) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now, r.old = batch{}, batch{}
}
