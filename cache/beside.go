package cache

import (
	"time"

	"github.com/levee-go/levee/internal/tier"
)

// Beside a writer
//
// While a writer holds the keys, or while the replicas of the source may lag, jobs load and
// publish nothing. The local tier keeps what was loaded for a second at most, so each
// process loads a key that many read about once a second, and not for each flight. The end
// of the hold drops it, by the message of the invalidation. The hold of ReplicaLag ends
// without a message, so nothing that was loaded under a hold is kept beyond the time at which
// that hold ends by itself, not even for errors.
//
// What was loaded answers only if no later reader can find the old value in Redis. So the
// jobs ask again: if the verdict is held once more, no value is in Redis now and no lease
// stands, so a value that is published later is also loaded later. Then the load answers
// those who had joined before it, and the readers that the local tier answers.

// A besideLoad is the load of a job beside a writer.
type besideLoad struct {
	at   int       // callers up to this number had joined before it
	mark tier.Mark // of the local tier, from before the verdict
	ends time.Time // of the first hold
}

// besideWriter notes what the load of a job has to know whose key a writer holds until ends.
func (c *Cache[K, V]) besideWriter(j *job[K, V], ends time.Time) {
	j.beside = &besideLoad{at: j.flight.Decide(), mark: j.mark, ends: ends}
}

// confirmBeside asks again for jobs that have loaded beside writers. It returns those that
// no writer holds any more.
func (c *Cache[K, V]) confirmBeside(jobs []*job[K, V]) (again []*job[K, V]) {
	var brought []*job[K, V]
	for _, j := range jobs {
		if j.loaded.err != nil {
			c.finishLoaded(j)
			continue
		}
		brought = append(brought, j)
	}
	granted, _, again := c.lease(brought)
	c.abort(granted) // they load again, in a place
	return append(again, granted...)
}

// finishBeside ends a job that has loaded beside a writer, who still holds its key.
func (c *Cache[K, V]) finishBeside(j *job[K, V], load *besideLoad, now time.Time) {
	j.flight.TakeBack(load.at)
	e := *j.loaded.entry
	left := min(maxUnconfirmed, load.ends.Sub(now))
	e.expires, e.hard = min(e.expires, now.Add(left).UnixMilli()), true
	_, size, _, _ := c.format.encode(j.id, j.loaded.entry)
	j.mark = load.mark
	j.filled = c.keep(j.mark, j.key, j.id, &e, size, left, now)
	c.finishLoaded(j)
}
