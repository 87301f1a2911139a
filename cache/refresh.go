package cache

import (
	"context"
	"errors"

	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/logonce"
)

// refresh loads a value in the background while the one that stands in Redis, seen,
// still answers: under the lease, so at most once in all processes. It does nothing if
// this process is refreshing the key, or failed to a moment ago, or if
// Options.Refreshes are running.
func (c *Cache[K, V]) refresh(ctx context.Context, key K, id string, seen []byte) {
	if c.refreshing.Add(1) > int64(c.o.Refreshes) {
		c.refreshing.Add(-1)
		return
	}
	f := c.flights.Alone(id)
	if f == nil {
		c.refreshing.Add(-1)
		return
	}
	c.counts.refreshes.Add(1)
	j := c.newJob(flight.Detached(ctx), key, f)
	j.class, j.seen, j.ended = background, seen, c.refreshEnded
	jobs := []*job[K, V]{j}
	go c.contained(jobs, func() { c.refreshes.add(jobs) })
}

func (c *Cache[K, V]) refreshEnded(j *job[K, V], err error) {
	c.refreshing.Add(-1)
	switch {
	case err == nil:
		c.counts.refreshed.Add(1)
	case !errors.Is(err, errElsewhere) && !c.closed():
		c.log.Warn("a refresh failed", logonce.Name("key", j.id), "error", err)
	}
}
