package cache

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/tier"
)

// localLife is the longest life of an entry in the local tier, unless Options.Local.TTL is set. Messages keep
// entries right, so it bounds only what nobody announces: a value that somebody deletes or replaces in
// Redis by hand. With 30 s instead, 1.4 to 3.8 times as many reads go to Redis (docs/internals/scaling.md).
const localLife = 5 * time.Minute

// maxStaleLife is how long the local tier serves a value past its TTL before a reader looks for a
// newer one in Redis. It spares Redis the readers of a value that is being refreshed.
const maxStaleLife = time.Second

// maxUnconfirmed is how long the local tier keeps a value that was loaded without Redis, or while
// a writer held the key. So a hot key is loaded about once a second, not once for each of its
// readers.
const maxUnconfirmed = time.Second

// A localTier is the local tier of a cache. Its methods do nothing if the tier is switched off.
type localTier[K comparable, V any] struct {
	*tier.Cache[K, entry[V]]
	*telemetry
	values       *values[V]
	tagClears    *atomic.Uint64 // see Group.TagClears: each hit reads it
	ttl          time.Duration  // Options.Local.TTL
	jitter       float64
	errorHold    time.Duration // Options.Rebuild.ErrorHold
	unstoredOnly bool          // it keeps, for errorHold, only values that a LoadEntry does not want stored
}

// newLocalTier makes the local tier. If the user has switched it off, a LoadEntry gets a small one, for values
// that are not stored: without it the readers of such a key would load one after another.
func newLocalTier[K comparable, V any](o Options, hasLoadEntry bool, t *telemetry, v *values[V]) (l localTier[K, V], err error) {
	l = localTier[K, V]{telemetry: t, values: v, ttl: o.Local.TTL, jitter: o.Jitter, errorHold: o.Rebuild.ErrorHold}
	tiered := tier.Options(o.Local)
	if l.unstoredOnly = tiered.MaxBytes < 0 && hasLoadEntry && l.errorHold > 0; l.unstoredOnly {
		tiered.MaxBytes, tiered.MaxNullBytes, tiered.Budget = 1<<20, 1<<18, nil
	}
	if l.Cache, err = tier.New[K, entry[V]](tiered); err != nil {
		err = fmt.Errorf("cache: Local: %w", err)
	}
	return l, err
}

// keep puts e into the local tier for longest at most, and reports whether it is there. mark is
// older than the operation that brought e, and encoded is the size of e.
func (l *localTier[K, V]) keep(mark tier.Mark, key K, id string, e *entry[V], encoded int, longest time.Duration, now time.Time) bool {
	if l.Cache == nil || l.unstoredOnly && !e.isUnstored(l.errorHold) || l.values.cleared(e) {
		return false
	}
	failpoint.At("fill")
	left := min(l.values.left(e.life, now), longest)
	if e.past(now) {
		left = min(left, maxStaleLife)
	}
	life := min(left, l.ttl)
	if l.values.fleet.Shared() { // without Redis only the TTL bounds it, which has been shortened already
		life = jittered(life, l.jitter)
	}
	if !e.null {
		return l.Fill(mark, key, *e, l.values.format.sizeOf(e.value, encoded), life)
	}
	// A value would hide the null, so it goes first. That overtakes the mark: the null is
	// kept from the next read on.
	if l.Kept(key) != nil {
		l.Delete(id)
		return false
	}
	return l.FillNull(mark, key, life)
}

// keptEntry returns the value that this process has kept of a key, even past its life, unless it
// was invalidated or cleared.
func (l *localTier[K, V]) keptEntry(key K) *entry[V] {
	if e := l.Kept(key); e != nil && !l.values.cleared(e) {
		return e
	}
	return nil
}

// overtaken reports whether a ClearTags has ended a value of the local tier; the local tier
// itself drops values that an Invalidate or a Clear ends. Before the first ClearTags a hit does
// not call overtaken: looking at a number costs nothing that can be measured, a call 1 ns of 16.
//
// A value is compared with its tags once for each ClearTags. It stores the number of clears it
// was compared with, not the time of the latest: this process may learn of its own clear before
// it learns of an earlier one of another process.
func (l *localTier[K, V]) overtaken(e *entry[V]) bool {
	clears := l.tagClears.Load()
	if e.more == nil || e.more.looked.Load() == clears {
		return false
	}
	if l.values.cleared(e) {
		l.counts.overtaken.Add(1)
		return true
	}
	e.more.looked.Store(clears)
	return false
}
