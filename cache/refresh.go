package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// Refresh loads keys anew from the source, for all processes, while their old values are still
// served. When it returns nil, no Get that starts afterwards, in any process, gets an older value
// from Redis or from a running rebuild; local tiers of other processes follow as soon as the
// message arrives. Use it for a change that was made elsewhere, of a key that is read too often
// to be dropped: [Cache.Invalidate] makes the next reader wait for the load. If a key no longer
// exists, Refresh stores that.
//
// It takes the keys' leases from whoever loads them, since such a load may have begun before the
// change. A key that a writer holds is invalidated instead: its value is dropped at the end of
// the write anyway.
//
// Refresh returns when ctx ends; the loads that it has begun go on. For keys whose load failed,
// whose old values are still served, or that Redis did not confirm (ErrUnavailable), the error is
// a [*BatchError]. It may also return ErrInvalidKey, ErrClosed, or the error of a ctx that has
// ended.
func (c *Cache[K, V]) Refresh(ctx context.Context, keys ...K) error {
	keys = unique(keys)
	ids, err := c.check(keys...)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var failed BatchError
	jobs := make([]*job[K, V], 0, len(keys))
	for i, key := range keys {
		f, err := c.flights.Apart(ctx, ids[i])
		if err != nil {
			failed.add(key, named(err))
			continue
		}
		jobs = append(jobs, c.newJob(ctx, key, f))
	}
	c.detach(jobs)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.inParts(jobs, c.replace)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return wait.Ended(ctx)
	}
	for _, j := range jobs {
		if err := j.loaded.err; err != nil {
			failed.add(j.key, named(err))
		}
	}
	if len(failed.Causes) > 0 {
		return &failed
	}
	return nil
}

// replace takes the leases of jobs and loads, until each new value has replaced the old one.
// Whoever overtakes a load has taken its lease away and may not have published yet: so the job
// loads again, at most maxOvertaken times, and then invalidates.
func (c *Cache[K, V]) replace(jobs []*job[K, V]) {
	for overtaken := 0; len(jobs) > 0; overtaken++ {
		if overtaken > maxOvertaken {
			c.invalidateInstead(jobs)
			return
		}
		jobs = c.attemptReplace(jobs)
	}
}

// attemptReplace takes a place, takes the leases, loads and publishes once, for a Refresh. It
// returns the jobs that were overtaken.
func (c *Cache[K, V]) attemptReplace(jobs []*job[K, V]) (overtaken []*job[K, V]) {
	ctx, stop := c.loadContext(jobs[0].ctx)
	defer stop()
	place, refusal := c.acquire(ctx, jobs)
	if refusal != nil {
		c.finishRefused(jobs, refusal)
		return nil
	}
	defer place.Release()
	if jobs = c.claimed(jobs); len(jobs) == 0 {
		return nil
	}
	renewal := c.leased(jobs)
	defer renewal.Stop() // after a panic
	c.load(ctx, place, jobs)
	renewal.Stop()
	return c.replaceLoaded(jobs)
}

// claimed takes the leases of jobs. It returns the jobs that have one, and ends the others.
func (c *Cache[K, V]) claimed(jobs []*job[K, V]) (claimed []*job[K, V]) {
	var held []*job[K, V]
	for i, grant := range c.fleet.Claim(jobs[0].ctx, idsOf(jobs)...) {
		switch j := jobs[i]; grant.Verdict {
		case fleet.Granted:
			j.lease = grant.Lease
			claimed = append(claimed, j)
		case fleet.Held:
			held = append(held, j)
		default:
			c.finish(j, found[V]{}, fmt.Errorf("%w: redis does not reply", ErrUnavailable))
		}
	}
	c.invalidateInstead(held)
	return claimed
}

// replaceLoaded publishes the values that jobs have loaded under claimed leases, in place of the
// old ones, and returns the jobs that were overtaken.
func (c *Cache[K, V]) replaceLoaded(jobs []*job[K, V]) (overtaken []*job[K, V]) {
	ctx := jobs[0].ctx
	var replacing, unstorable, failed []*job[K, V]
	var values []fleet.Publication
	for _, j := range jobs {
		switch value, _ := c.publication(j); {
		case j.loaded.err != nil:
			failed = append(failed, j)
		case j.storable:
			replacing, values = append(replacing, j), append(values, value)
		default:
			unstorable = append(unstorable, j)
		}
	}
	c.abort(failed)
	for _, j := range failed {
		c.finishLoaded(j)
	}
	c.invalidateInstead(unstorable)
	if len(replacing) == 0 {
		return nil
	}
	if !c.fleet.Shared() {
		// The old value ends here, so that a caller that has read it cannot fill the local
		// tier later, and an invalidation from now on ends the new one.
		for _, j := range replacing {
			c.forgetLocal([]string{j.id})
			j.mark = c.local.Mark(j.id)
		}
	}
	for i, outcome := range c.fleet.Replace(ctx, values...) {
		j := replacing[i]
		switch {
		case outcome.Err != nil:
			c.forgetLocal([]string{j.id}) // the value may have been published
			c.finish(j, found[V]{}, fmt.Errorf("%w: the new value is not confirmed", ErrUnavailable))
		case !outcome.Published:
			overtaken = append(overtaken, j)
		case c.fleet.Shared():
			c.forgetLocal([]string{j.id})
			c.finish(j, found[V]{}, nil)
		default:
			c.fill(j, j.loaded.entry, j.size, time.Now())
			c.finish(j, found[V]{}, nil)
		}
	}
	return overtaken
}

// invalidateInstead ends jobs by dropping the old values, which the new ones cannot replace.
func (c *Cache[K, V]) invalidateInstead(jobs []*job[K, V]) {
	if len(jobs) == 0 {
		return
	}
	err := c.invalidate(flight.Detached(jobs[0].ctx), idsOf(jobs))
	if err != nil { // Refresh changes no row, so the cause does not matter
		err = fmt.Errorf("%w: the old value is not dropped yet", ErrUnavailable)
	}
	c.finishEach(jobs, err)
}

// refresh loads values in the background while the values that were read are still served. It
// loads under their leases, so at most once in all processes, and values of one GetMany by one
// LoadMany. It leaves out a key that this process is refreshing or has just failed to refresh,
// and keys for which Options.Refreshes leaves no place.
func (c *Cache[K, V]) refresh(ctx context.Context, lookups ...*lookup[K, V]) {
	together := 1
	if c.source.LoadMany != nil {
		together = maxBatch
	}
	for part := range slices.Chunk(lookups, together) {
		if !c.refreshPart(ctx, part) {
			return
		}
	}
}

// refreshPart starts a refresh of keys that one call of the source loads. It returns false if too
// many refreshes run.
func (c *Cache[K, V]) refreshPart(ctx context.Context, lookups []*lookup[K, V]) bool {
	if c.refreshing.Add(1) > int64(c.o.Refreshes) {
		c.refreshing.Add(-1)
		return false
	}
	running := &atomic.Int64{}
	ended := func(j *job[K, V], err error) {
		if running.Add(-1) == 0 {
			c.refreshing.Add(-1)
		}
		c.refreshEnded(j, err)
	}
	var jobs []*job[K, V]
	for _, l := range lookups {
		if f := c.flights.Alone(l.id); f != nil {
			j := c.newJob(flight.Detached(ctx), l.key, f)
			j.class, j.seen, j.ended = background, l.seen, ended
			jobs = append(jobs, j)
		}
	}
	if len(jobs) == 0 {
		c.refreshing.Add(-1)
		return true
	}
	running.Store(int64(len(jobs)))
	c.counts.refreshes.Add(uint64(len(jobs)))
	go c.contained(jobs, func() { c.refreshes.add(jobs) })
	return true
}

func (c *Cache[K, V]) refreshEnded(j *job[K, V], err error) {
	switch {
	case err == nil:
		c.counts.refreshed.Add(1)
	case !errors.Is(err, errElsewhere) && !c.closed():
		c.log.Warn("a refresh failed", logonce.Name("key", j.id), "error", err)
	}
}
