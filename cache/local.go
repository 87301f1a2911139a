package cache

import (
	"time"

	"github.com/levee-go/levee/internal/failpoint"
)

// maxStaleLife is for how long the local tier answers with a value past its TTL
// before somebody looks for a newer one. It takes from Redis the reads of all who ask
// for a value while one of them refreshes it.
const maxStaleLife = time.Second

// fill puts the result of a job into the local tier, before the flight ends: the next
// Get finds it there. The job's mark is older than the read that brought the result,
// so an invalidation in between drops it. encoded is the size of the entry. What Warm
// loads stays in Redis: nobody has asked for it, and it would push out what is read.
func (c *Cache[K, V]) fill(j *job[K, V], e *entry[V], encoded int, now time.Time) {
	if c.local == nil || c.cleared(e) || j.warms && c.fleet.Shared() {
		return
	}
	failpoint.At("fill")
	left := c.windows.left(e.life, now)
	if e.past(now) {
		left = min(left, maxStaleLife)
	}
	life := min(left, c.o.Local.TTL)
	if c.fleet.Shared() { // else the TTL is all there is, and has been shortened already
		life = jittered(life, c.o.Jitter)
	}
	if !e.null {
		j.filled = c.local.Fill(j.mark, j.key, *e, c.format.sizeOf(e.value, encoded), life)
		return
	}
	// A value would hide the null, so it goes first. That overtakes the mark: the null is
	// kept from the next read on.
	if c.local.Kept(j.key) != nil {
		c.local.Delete(j.id)
		return
	}
	j.filled = c.local.FillNull(j.mark, j.key, life)
}

// forgetLocal drops what this process alone knows of ids: entries and held errors.
func (c *Cache[K, V]) forgetLocal(ids []string) {
	for _, id := range ids {
		c.local.Delete(id)
		c.flights.Forget(id)
	}
}
