package cache

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/mutexrebuild"
)

// Beside a writer
//
// While a writer holds the keys, or while the replicas of the source may lag, jobs load and
// publish nothing. A key that many read is loaded about once a second meanwhile, because
// what was loaded is shared: it answers others for a second, or until anything happens to
// the key. See [mutexrebuild.Group.Share].
//
// What is not shared answers only if no later reader can find the old value in Redis.
// So the jobs ask again: if the verdict is held once more, no value is in Redis now and no
// lease stands, so a value that is published or shared later is also loaded later. Then
// the load answers those who had joined before it. No such value goes to the local tier:
// when the write returns, nobody has one.

// besideWriter begins loads beside writers.
func (c *Cache[K, V]) besideWriter(jobs []*job[K, V]) {
	for _, j := range jobs {
		c.counts.besideWriter.Add(1)
		j.besideAt = c.decide(j)
	}
}

// shareLoaded shares what jobs have loaded beside writers, and returns those that have to
// ask again.
func (c *Cache[K, V]) shareLoaded(jobs []*job[K, V]) (again []*job[K, V]) {
	var brought []*job[K, V]
	for _, j := range jobs {
		if j.loaded.err != nil {
			c.finishLoaded(j)
			continue
		}
		brought = append(brought, j)
	}
	if len(brought) == 0 {
		return nil
	}
	return c.share(jobs[0].ctx, brought)
}

// share shares what jobs have loaded, and returns those whose value is not shared.
func (c *Cache[K, V]) share(ctx context.Context, jobs []*job[K, V]) (again []*job[K, V]) {
	values := make([]mutexrebuild.Publication, 0, len(jobs))
	sharing := make([]*job[K, V], 0, len(jobs))
	for _, j := range jobs {
		j.beside = true
		e := j.loaded.entry
		data, _, _, err := c.format.encode(j.id, e)
		life := min(e.left(time.Now()), mutexrebuild.ShareFor)
		if err != nil || !c.fleet.Storable(data, life) {
			again = append(again, j)
			continue
		}
		j.flight.Decide()
		sharing, values = append(sharing, j), append(values, mutexrebuild.Publication{Lease: j.lease, Data: data, TTL: life})
	}
	if len(sharing) == 0 {
		return again
	}
	failpoint.At("share")
	for i, shared := range c.fleet.Share(ctx, values...) {
		if shared && !c.cleared(sharing[i].loaded.entry) { // else Clear has overtaken the load
			c.finishLoaded(sharing[i])
		} else {
			again = append(again, sharing[i])
		}
	}
	return again
}

// acceptShared ends a job with a value that another flight shares.
func (c *Cache[K, V]) acceptShared(j *job[K, V], value mutexrebuild.Value, now time.Time) bool {
	if len(value.Data) == 0 {
		return false
	}
	answer, state := c.judge(j.id, value, now)
	if state >= stale {
		return false
	}
	c.finish(j, answer, nil)
	return true
}
