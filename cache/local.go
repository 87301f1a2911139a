package cache

import (
	"time"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/tier"
)

// maxStaleLife is how long the local tier serves a value past its TTL before a reader looks for a
// newer one in Redis. It spares Redis the readers of a value that is being refreshed.
const maxStaleLife = time.Second

// maxUnconfirmed is how long the local tier keeps a value that was loaded without Redis, or while
// a writer held the key. So a hot key is loaded about once a second, not once for each of its
// readers.
const maxUnconfirmed = time.Second

// localOptions returns the options of the local tier. If the user has switched the tier off, a
// LoadEntry gets a small one. It keeps, for Rebuild.ErrorHold, only values that the loader does
// not want stored: without it the readers of such a key would load one after another.
func (c *Cache[K, V]) localOptions() tier.Options {
	o := tier.Options(c.o.Local)
	if c.unstoredOnly = o.MaxBytes < 0 && c.source.LoadEntry != nil && c.o.Rebuild.ErrorHold > 0; c.unstoredOnly {
		o.MaxBytes, o.MaxNullBytes, o.Budget = 1<<20, 1<<18, nil
	}
	return o
}

// keep puts e into the local tier for longest at most, and reports whether it is there. mark is
// older than the operation that brought e, and encoded is the size of e.
func (c *Cache[K, V]) keep(mark tier.Mark, key K, id string, e *entry[V], encoded int, longest time.Duration, now time.Time) bool {
	if c.local == nil || c.unstoredOnly && !e.isUnstored(c.o.Rebuild.ErrorHold) || c.cleared(e) {
		return false
	}
	failpoint.At("fill")
	left := min(c.windows.left(e.life, now), longest)
	if e.past(now) {
		left = min(left, maxStaleLife)
	}
	life := min(left, c.o.Local.TTL)
	if c.fleet.Shared() { // without Redis only the TTL bounds it, which has been shortened already
		life = jittered(life, c.o.Jitter)
	}
	if !e.null {
		return c.local.Fill(mark, key, *e, c.format.sizeOf(e.value, encoded), life)
	}
	// A value would hide the null, so it goes first. That overtakes the mark: the null is
	// kept from the next read on.
	if c.local.Kept(key) != nil {
		c.local.Delete(id)
		return false
	}
	return c.local.FillNull(mark, key, life)
}

// keptEntry returns the value that this process has kept of a key, even past its life, unless it
// was invalidated or cleared.
func (c *Cache[K, V]) keptEntry(key K) *entry[V] {
	if e := c.local.Kept(key); e != nil && !c.cleared(e) {
		return e
	}
	return nil
}

// forgetLocal drops the entries and held errors of ids in this process.
func (c *Cache[K, V]) forgetLocal(ids []string) {
	for _, id := range ids {
		c.local.Delete(id)
		c.flights.Forget(id)
	}
}
