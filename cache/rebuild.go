package cache

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/mutexrebuild"
)

// Rebuilding
//
// A job is one key on its way through a flight. Jobs go through the steps below in
// batches; a single Get is a batch of one. A batch splits where its keys need
// different steps, and each part goes on by itself. A step ends in an answer, or in
// another ask for the lease.
//
//	look         reads Redis, if the caller who opened the flight has not. A value that
//	             answers ends the job.
//	rebuild      asks for leases, until each key has an answer or a step to go on with; a key
//	             that is loaded by itself first takes its place at the breaker (rebuildWithPlace):
//	  granted      loadAndPublish: load, publish under the lease, end; refused: rebuild
//	  held         loadBesideWriter: load without publishing, then rebuild
//	  busy         waitForLease: another process loads; wait for it, then rebuild
//	  unknown      loadDegraded: Redis does not answer; load without publishing, end
//
// A refresh is a job whose flight nobody waits for. It gives up where others would
// wait.

// maxRefusals is how often a load that an invalidation overtook is run again. A key
// that is refused more often is written faster than it can be loaded; its callers get
// the value that was loaded last, which is right for them: they asked before that load.
const maxRefusals = 2

// maxInnerWait is how long a load waits for what another process loads. After that it
// loads that itself, in the place that it has and that is of no use meanwhile. The other
// process may be waiting for what loads of this one hold up in turn.
const maxInnerWait = 500 * time.Millisecond

// errElsewhere ends a load in the background that another process, or a writer, makes
// needless.
var errElsewhere = errors.New("levee: loaded elsewhere")

// A step takes jobs a step further and returns those that want to ask for a lease
// again. It owns them from its call on.
type step[K comparable, V any] struct {
	jobs []*job[K, V]
	do   func([]*job[K, V]) (again []*job[K, V])
}

// start runs the flights that a caller has opened, beyond what the caller has read. Where
// nobody has read Redis, it does so on the caller's goroutine, which leaves when its
// context ends; everything after that runs on another one.
func (c *Cache[K, V]) start(ctx context.Context, jobs ...*job[K, V]) {
	var looking, missing, unread []*job[K, V]
	for _, j := range jobs {
		switch c.decide(j); {
		case j.looks:
			looking = append(looking, j)
		case c.filledMeanwhile(j):
		case j.unread:
			unread = append(unread, j)
		default:
			missing = append(missing, j)
		}
	}
	if len(looking) > 0 {
		c.contained(looking, func() {
			more, without := c.look(ctx, looking)
			missing, unread = append(missing, more...), append(unread, without...)
		})
	}
	detach(missing)
	detach(unread)
	if len(missing) > 0 {
		go c.inParts(missing, c.rebuild)
	}
	switch {
	case len(unread) == 0:
	case ctx.Err() != nil: // the caller has left, which says nothing about Redis
		go c.run(unread)
	default:
		go c.inParts(unread, c.loadWithoutLease)
	}
}

// run takes jobs from the beginning to their ends.
func (c *Cache[K, V]) run(jobs []*job[K, V]) {
	c.contained(jobs, func() {
		missing, unread := c.look(jobs[0].ctx, jobs)
		if len(unread) > 0 {
			go c.inParts(unread, c.loadWithoutLease)
		}
		c.inParts(missing, c.rebuild)
	})
}

// look reads Redis and ends the jobs whose value is an answer. The others it returns:
// those that have no value, and those that Redis gave no answer for. Whether there is a
// value then is unknown, and that is not a miss.
func (c *Cache[K, V]) look(ctx context.Context, jobs []*job[K, V]) (missing, unread []*job[K, V]) {
	ids, asked := make([]string, 0, len(jobs)), make([]*job[K, V], 0, len(jobs))
	for _, j := range jobs {
		if c.decide(j); !c.filledMeanwhile(j) {
			asked, ids = append(asked, j), append(ids, j.id)
		}
	}
	values, now := c.readMany(ctx, ids)
	for i, value := range values {
		switch j := asked[i]; {
		case value.Err != nil:
			unread = append(unread, j)
		case !c.accept(j, value, now):
			j.seen = value.Data
			missing = append(missing, j)
		}
	}
	return missing, unread
}

// filledMeanwhile ends a job whose flight was opened by a caller who missed the local
// tier and Redis before an earlier flight had filled them, and joined after that had
// ended. Without this look the key would be loaded twice if it is not in Redis: a null
// that is missed for the first time, or any key while there is no Redis to ask.
//
// It does not end a job of Warm, which is there for what is missing in Redis.
func (c *Cache[K, V]) filledMeanwhile(j *job[K, V]) bool {
	if j.warms {
		return false
	}
	answer := found[V]{entry: c.absent, tier: TierLocal}
	switch e, kind := c.local.Again(j.key); kind {
	case localcache.Value:
		answer.entry, answer.stale = e, e.past(time.Now())
	case localcache.Miss:
		return false
	}
	j.filled = true
	c.finish(j, answer, nil)
	return true
}

// accept ends a job with a value from Redis if that is an answer.
func (c *Cache[K, V]) accept(j *job[K, V], value mutexrebuild.Value, now time.Time) bool {
	if len(value.Data) == 0 {
		return false
	}
	answer, state := c.judge(j.id, value, now)
	switch {
	case j.warms:
		if state < stale {
			c.finish(j, found[V]{}, errElsewhere)
		}
		return state < stale
	case state >= fallback, j.class == background && state != fresh:
		return false
	}
	c.fill(j, answer.entry, len(value.Data), now)
	if state != fresh {
		c.refresh(j.ctx, j.key, j.id, value.Data)
	}
	c.finish(j, answer, nil)
	return true
}

// judge decodes a value from Redis and says what it is good for.
func (c *Cache[K, V]) judge(id string, value mutexrebuild.Value, now time.Time) (found[V], state) {
	e, ok := c.format.decode(id, value.Data)
	switch {
	case value.TooLong || !ok && !c.format.isOfOtherType(id, value.Data):
		c.counts.unfit.Add(1)
		c.log.Warn("what stands in redis is no value of this cache, and is replaced", logonce.Name("key", id), "bytes", len(value.Data))
		return found[V]{}, dead
	case !ok:
		c.counts.otherType.Add(1)
		c.log.Warn("redis holds a value of another type than this process stores: raise Schema by one whenever the type of the values changes", logonce.Name("key", id))
		return found[V]{}, dead
	}
	if c.cleared(e) {
		c.counts.cleared.Add(1)
		return found[V]{}, dead
	}
	state := c.stateOf(e, now)
	return found[V]{entry: e, tier: TierRedis, stale: state >= stale, fallback: state == fallback}, state
}

// rebuild asks for leases and goes on as their verdicts say, until no job wants to ask
// again. Each ask is a decision of its own, and returns the value that is in Redis by then: so
// a flight that a caller opens after its own read begins here.
func (c *Cache[K, V]) rebuild(jobs []*job[K, V]) {
	for _, j := range jobs {
		if j.waiter == nil && j.class != background {
			j.waiter = c.fleet.NewWaiter(j.id)
		}
		c.beginRebuild(j)
	}
	failpoint.At("missed")
	if c.loadsAlone(jobs) {
		jobs = c.rebuildWithPlace(jobs[0])
	}
	for len(jobs) > 0 {
		jobs = c.proceed(c.byVerdict(jobs, c.askForLeases(jobs)))
	}
}

func (c *Cache[K, V]) askForLeases(jobs []*job[K, V]) []mutexrebuild.Grant {
	asks := make([]mutexrebuild.Ask, len(jobs))
	for i, j := range jobs {
		j.waiter.Ready()
		j.asked = true
		c.decide(j)
		asks[i] = mutexrebuild.Ask{ID: j.id, Seen: j.seen}
	}
	return c.fleet.Begin(jobs[0].ctx, asks...)
}

// byVerdict ends the jobs that a grant brought an answer for, and puts the others to the
// steps that follow from their verdicts.
func (c *Cache[K, V]) byVerdict(jobs []*job[K, V], grants []mutexrebuild.Grant) []step[K, V] {
	now := time.Now()
	var granted, held, unknown, again []*job[K, V]
	var steps []step[K, V]
	for i, j := range jobs {
		grant, beside := grants[i], j.beside
		j.beside = false
		if grant.Verdict != mutexrebuild.Busy {
			c.endLeaseWait(j)
		}
		switch grant.Verdict {
		case mutexrebuild.Granted:
			j.lease = grant.Lease
			granted = append(granted, j)
		case mutexrebuild.Found:
			if !c.accept(j, grant.Value, now) {
				j.seen = grant.Value.Data
				again = append(again, j)
			}
		case mutexrebuild.Held, mutexrebuild.Busy:
			switch {
			case j.class == background:
				c.finish(j, found[V]{}, errElsewhere)
			case grant.Verdict == mutexrebuild.Busy:
				j.remaining = grant.Remaining
				steps = append(steps, step[K, V]{[]*job[K, V]{j}, c.waitForLease})
			case c.acceptShared(j, grant.Value, now):
			case beside:
				j.flight.TakeBack(j.besideAt)
				c.finishLoaded(j)
			default:
				j.lease = grant.Lease
				held = append(held, j)
			}
		default:
			if j.warms { // every process would load all keys
				c.finish(j, found[V]{}, errNoRedis)
				continue
			}
			unknown = append(unknown, j)
		}
	}
	if len(again) > 0 {
		steps = append(steps, step[K, V]{again, func(jobs []*job[K, V]) []*job[K, V] { return jobs }})
	}
	if len(held) > 0 {
		steps = append(steps, step[K, V]{held, c.loadBesideWriter})
	}
	if len(unknown) > 0 {
		steps = append(steps, step[K, V]{unknown, c.loadDegraded})
	}
	if len(granted) > 0 {
		steps = append(steps, step[K, V]{granted, c.loadAndPublish})
	}
	return steps
}

// proceed takes steps side by side, the last of them on this goroutine.
func (c *Cache[K, V]) proceed(steps []step[K, V]) (again []*job[K, V]) {
	if len(steps) == 0 {
		return nil
	}
	last := steps[len(steps)-1]
	for _, s := range steps[:len(steps)-1] {
		go c.contained(s.jobs, func() { c.rebuild(s.do(s.jobs)) })
	}
	c.contained(last.jobs, func() { again = last.do(last.jobs) }) // a panic is not the end of the other steps' jobs
	return again
}

// waitForLease waits until it may be time to ask for the lease of a key again that
// another process has.
func (c *Cache[K, V]) waitForLease(jobs []*job[K, V]) (again []*job[K, V]) {
	j := jobs[0]
	if j.waits.IsZero() {
		j.waits = time.Now()
	}
	if j.flight.Inner() && time.Since(j.waits) > maxInnerWait {
		return c.loadDegraded(jobs)
	}
	c.beginLeaseWait(j)
	if j.waiter.Wait(c.closing, j.remaining) {
		return jobs
	}
	return c.loadDegraded(jobs)
}

func (c *Cache[K, V]) loadWithoutLease(jobs []*job[K, V]) { c.loadDegraded(jobs) }

// loadDegraded loads without a lease and publishes nothing: Redis does not answer, or
// another process has had the lease for too long.
func (c *Cache[K, V]) loadDegraded(jobs []*job[K, V]) (again []*job[K, V]) {
	for _, j := range jobs {
		c.endLeaseWait(j)
		c.beginRebuild(j)
		c.decide(j)
		if j.class == normal {
			j.class = degraded
		}
	}
	c.load(jobs)
	for _, j := range jobs {
		if j.loaded.err == nil {
			// A writer, or a replica that lags, may stand behind the silence. And during an
			// outage nothing tells of an invalidation.
			_, size, _, _ := c.format.encode(j.id, j.loaded.entry)
			longest := time.Duration(math.MaxInt64)
			if c.fleet.Shared() {
				longest = maxUnconfirmed
			}
			j.filled = c.keep(j.mark, j.key, j.id, j.loaded.entry, size, longest, time.Now())
		}
		c.finishLoaded(j)
	}
	return nil
}
