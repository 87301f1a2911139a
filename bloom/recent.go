package bloom

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// maxRecent is how many hashes or ids a recent keeps: 6 MB of hashes.
	maxRecent = 1 << 18
	// A batch has minBatch places, and twice as many as the one before if that was filled.
	minBatch, maxBatch = 64, 4096
)

// A recent keeps the entries that were added in the last span. A filter in one process keeps
// hashes for its next Rebuild: their rows may commit behind its scan. A process that shares a
// filter keeps ids in case Redis loses them. If more entries are added than it has room for, the
// recent drops the oldest and notes until when one of their rows may still commit, so that a
// Rebuild can wait.
//
// It takes no lock. An entry goes into a place of the newest batch, and a batch that is full, or
// that was begun a span ago, gets a successor. Batches are never used again: a push that comes
// late may still write into an old one.
//
// A take may miss the entry of a push that has not returned. Whoever pushes must therefore look,
// after the push, for what begins before a take: an Add looks for the table of a Rebuild.
type recent[T any] struct {
	span time.Duration // how long a row may take to commit; 0 or less: nothing is kept
	room int           // entries that are kept at most
	// clock returns the time since the filter was made. The clock of a shared filter stops while the log is
	// not read: ids that Redis may have lost must not grow old meanwhile.
	clock func() time.Duration

	newest atomic.Pointer[batch[T]] // nil: nothing was added
	lost   atomic.Int64             // until then the row of a dropped entry may commit
}

type batch[T any] struct {
	older  atomic.Pointer[batch[T]] // nil: those before it were dropped
	begun  int64
	last   atomic.Int64 // when the last push began that may have an entry in it
	given  atomic.Int64 // places that pushes have asked for, also in vain
	places []place[T]
}

type place[T any] struct {
	entry  T           // written before filled
	filled atomic.Bool // else nothing is in it, or not yet
}

func (r *recent[T]) push(added []T) {
	if r.span <= 0 {
		return
	}
	now := int64(r.clock())
	for i := 0; i < len(added); {
		b := r.newest.Load()
		if b == nil || b.full() || now-b.begun >= int64(r.span) {
			r.succeed(b, now)
			continue
		}
		raise(&b.last, now)
		if at := b.given.Add(1) - 1; at < int64(len(b.places)) {
			b.places[at].entry = added[i]
			b.places[at].filled.Store(true)
			i++
		}
	}
}

func (b *batch[T]) full() bool { return b.given.Load() >= int64(len(b.places)) }

// succeed puts an empty batch in front of b, unless somebody else has, and drops those for which
// there is no room.
func (r *recent[T]) succeed(b *batch[T], now int64) {
	size := minBatch
	if b != nil {
		if b.full() {
			size = 2 * len(b.places)
		}
		// From here on b gives out no place. A push that was paused would write into it after shorten had judged it
		// by its last, and no take would find the entry.
		raise(&b.given, int64(len(b.places)))
	}
	size = min(size, maxBatch, max(1, r.room/8))
	next := &batch[T]{begun: now, places: make([]place[T], size)}
	next.older.Store(b)
	next.last.Store(now)
	if r.newest.CompareAndSwap(b, next) {
		r.shorten(next, now)
	}
}

// shorten drops batches that are too old or too many.
func (r *recent[T]) shorten(b *batch[T], now int64) {
	kept := len(b.places)
	for {
		older := b.older.Load()
		if older == nil {
			return
		}
		if kept += len(older.places); kept > r.room || !r.matters(older, now) {
			for ; older != nil; older = older.older.Load() {
				if r.matters(older, now) {
					raise(&r.lost, older.last.Load()+min(int64(r.span), math.MaxInt64/4))
				}
			}
			b.older.Store(nil) // after lost is raised: a take that finds no batch here waits
			return
		}
		b = older
	}
}

// matters reports whether a row of b may still be uncommitted.
func (r *recent[T]) matters(b *batch[T], now int64) bool {
	return b.given.Load() > 0 && now-b.last.Load() < int64(r.span)
}

// take returns the entries that were added in the last span, the oldest first, and how long to
// wait until the rows of dropped entries have committed.
func (r *recent[T]) take() (kept []T, wait time.Duration) {
	now := int64(r.clock())
	for b := r.newest.Load(); b != nil; b = b.older.Load() {
		if !r.matters(b, now) {
			continue
		}
		for i := min(b.given.Load(), int64(len(b.places))) - 1; i >= 0; i-- {
			if p := &b.places[i]; p.filled.Load() {
				kept = append(kept, p.entry)
			}
		}
	}
	slices.Reverse(kept)
	if lost := r.lost.Load(); lost != 0 {
		wait = time.Duration(lost - now)
	}
	return kept, wait
}

// drop forgets everything.
func (r *recent[T]) drop() { r.newest.Store(nil) }

// raise makes v no less than to.
func raise(v *atomic.Int64, to int64) {
	for old := v.Load(); old < to && !v.CompareAndSwap(old, to); old = v.Load() {
	}
}
