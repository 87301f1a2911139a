package bloom

import (
	"sync"
	"time"
)

// maxBatch is how many hashes a batch keeps: 2 MB, and there are two batches.
const maxBatch = 1 << 17

// A recent keeps the hashes of the last span, in two batches that each cover at
// most a span, for the next Rebuild: their rows may commit behind its scan. If more
// are added than two batches hold, it drops the older batch and notes until when one
// of those rows may still commit, so that a Rebuild can wait.
type recent struct {
	span time.Duration // how long a row may take to commit; 0 or less: nothing is kept
	room int           // hashes that a batch holds

	mu       sync.Mutex // guards the fields below
	now, old batch
	lost     time.Time // until then a dropped row may commit
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
			r.rotate(now)
		}
		r.now.hashes = append(r.now.hashes, part...)
		r.now.last = now
	}
}

// rotate begins a new batch and drops the older one.
func (r *recent) rotate(now time.Time) {
	if r.matters(r.old, now) {
		r.lost = r.old.last.Add(r.span)
	}
	reuse := r.old.hashes[:0]
	r.old = r.now
	r.now = batch{hashes: reuse, begun: now}
}

// matters reports whether a row of b may still be uncommitted.
func (r *recent) matters(b batch, now time.Time) bool {
	return len(b.hashes) > 0 && now.Sub(b.last) < r.span
}

// take returns the hashes whose rows may still be uncommitted, and how long to wait
// until the rows of the dropped ones have committed.
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
