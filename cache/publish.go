package cache

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/fleet"
)

// leased begins loads under the leases of jobs, which are renewed until the Renewal is
// stopped.
func (c *Cache[K, V]) leased(jobs []*job[K, V]) *fleet.Renewal {
	if len(jobs) == 0 {
		return nil
	}
	failpoint.At("granted")
	for _, j := range jobs {
		j.began = j.flight.Decide()
	}
	return c.fleet.KeepRenewing(jobs[0].ctx, leasesOf(jobs))
}

// publishLoaded publishes what jobs have loaded under their leases. An invalidation that
// overtook a load has taken its lease away: that job loads again, at most maxOvertaken times.
func (c *Cache[K, V]) publishLoaded(jobs []*job[K, V]) (again []*job[K, V]) {
	if len(jobs) == 0 {
		return nil
	}
	failpoint.At("loaded")
	ctx := jobs[0].ctx
	var publishing []*job[K, V]
	var values []fleet.Publication
	var unused []*job[K, V]
	for _, j := range jobs {
		if value, ok := c.publication(j); ok {
			publishing, values = append(publishing, j), append(values, value)
		} else {
			unused = append(unused, j)
		}
	}
	c.abort(unused)
	for _, j := range unused {
		c.endUnpublished(j)
	}
	if len(publishing) == 0 {
		return nil
	}
	return c.publish(ctx, publishing, values)
}

// abort gives the leases of jobs back.
func (c *Cache[K, V]) abort(jobs []*job[K, V]) {
	if len(jobs) > 0 {
		c.fleet.Abort(jobs[0].ctx, leasesOf(jobs)...)
	}
}

// publication returns what to publish for a job. If its value cannot be stored, that
// is nothing, or the end of an old value that must not go on to answer.
func (c *Cache[K, V]) publication(j *job[K, V]) (value fleet.Publication, ok bool) {
	if j.loaded.err != nil {
		return value, false
	}
	if j.warms {
		j.loaded.entry.spread()
	}
	data, size, ttl, err := c.format.encode(j.id, j.loaded.entry)
	value = fleet.Publication{Lease: j.lease, Data: data, TTL: ttl}
	j.size, j.storable = size, err == nil && c.fleet.Storable(data, ttl)
	if !j.storable {
		if !j.loaded.entry.private {
			c.counts.unpublished.Add(1)
		}
		value.Data = nil
	}
	return value, j.storable || len(j.seen) > 0
}

// publish commits values and ends their jobs, except those that were refused.
func (c *Cache[K, V]) publish(ctx context.Context, jobs []*job[K, V], values []fleet.Publication) (again []*job[K, V]) {
	for _, j := range jobs {
		j.flight.Decide()
	}
	failpoint.At("commit")
	outcomes := c.fleet.Commit(ctx, values...)
	failpoint.At("committed")
	for i, j := range jobs {
		switch outcome := outcomes[i]; {
		case outcome.Published && j.storable && !c.cleared(j.loaded.entry): // else Clear has overtaken the load
			c.fill(j, j.loaded.entry, j.size, time.Now())
			c.finishLoaded(j)
		case outcome.Err != nil && j.warms: // nobody waits for the value, and Redis may not have it
			c.finish(j, found[V]{}, errNoRedis)
		case outcome.Err != nil || outcome.Published || j.overtaken == maxOvertaken:
			c.endUnpublished(j)
		case j.class == background:
			c.finish(j, found[V]{}, errElsewhere) // invalidated, so there is nothing left to refresh
		default:
			j.flight.TakeBack(j.began)
			j.overtaken++
			again = append(again, j)
		}
	}
	return again
}

// endUnpublished ends a job whose value was not, or perhaps not, published. So it says
// nothing to callers who joined after its load began.
func (c *Cache[K, V]) endUnpublished(j *job[K, V]) {
	j.flight.TakeBack(j.began)
	if j.loaded.err == nil {
		c.fill(j, j.loaded.entry, j.size, time.Now())
	}
	c.finishLoaded(j)
}

// finishLoaded ends a job with what its load brought.
func (c *Cache[K, V]) finishLoaded(j *job[K, V]) {
	c.finish(j, found[V]{entry: j.loaded.entry, tier: TierSource, load: j.loaded.by}, j.loaded.err)
}

// finishRefused ends jobs that the breaker gave no place.
func (c *Cache[K, V]) finishRefused(jobs []*job[K, V], refusal error) {
	for _, j := range jobs {
		j.loaded = loaded[V]{err: refusal, refused: errors.Is(refusal, breaker.ErrLimited)}
		c.finishLoaded(j)
	}
}
