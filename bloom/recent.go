package bloom

import (
	"sync"
	"time"
)

// maxBatch is how many hashes or ids a batch keeps: 2 MB of hashes, and there are two batches.
const maxBatch = 1 << 17

// A recent keeps the entries that were added in the last span, in two batches that each cover at
// most a span. A filter in one process keeps hashes for its next Rebuild: their rows may commit
// behind its scan. A process that shares a filter keeps ids in case Redis loses them. If more
// entries are added than two batches hold, the recent drops the older batch and notes until
// when one of its rows may still commit, so that a Rebuild can wait.
type recent[T any] struct {
	span time.Duration // how long a row may take to commit; 0 or less: nothing is kept
	room int           // entries that a batch holds
	// clock returns the time. The clock of a shared filter stops while the log is not read:
	// ids that Redis may have lost must not grow old meanwhile.
	clock func() time.Time

	mu       sync.Mutex // guards the fields below
	now, old batch[T]
	lost     time.Time // until then the row of a dropped entry may commit
}

type batch[T any] struct {
	added       []T
	begun, last time.Time
}

func (r *recent[T]) push(added []T) {
	if r.span <= 0 {
		return
	}
	now := r.clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(added) > 0 {
		part := added[:min(len(added), r.room)]
		added = added[len(part):]
		if now.Sub(r.now.begun) >= r.span || len(r.now.added)+len(part) > r.room {
			r.rotate(now)
		}
		r.now.added = append(r.now.added, part...)
		r.now.last = now
	}
}

// rotate begins a new batch and drops the older one.
func (r *recent[T]) rotate(now time.Time) {
	if r.matters(r.old, now) {
		r.lost = r.old.last.Add(r.span)
	}
	reuse := r.old.added[:0]
	r.old = r.now
	r.now = batch[T]{added: reuse, begun: now}
}

// matters reports whether a row of b may still be uncommitted.
func (r *recent[T]) matters(b batch[T], now time.Time) bool {
	return len(b.added) > 0 && now.Sub(b.last) < r.span
}

// take returns the entries that were added in the last span, and how long to wait until the
// rows of dropped entries have committed.
func (r *recent[T]) take() (kept []T, wait time.Duration) {
	now := r.clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range []batch[T]{r.old, r.now} {
		if r.matters(b, now) {
			kept = append(kept, b.added...)
		}
	}
	return kept, r.lost.Sub(now)
}

// drop forgets everything.
func (r *recent[T]) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now, r.old = batch[T]{}, batch[T]{}
}
