package cache

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
)

// Rebuilding
//
// A job is one key on its way through a flight. Jobs take these steps in batches, and a
// single Get is a batch of one:
//
//	look      reads Redis, unless the caller who opened the flight has. A value that is
//	          an answer ends the job
//	place     waits for a place at the breaker, for as long as somebody waits for the jobs
//	lease     asks Redis for the leases of the keys, in that place
//	load      asks the source, in that place, for the keys that may be loaded
//	publish   stores what was loaded, under the leases
//
// The lease step has a verdict on each key:
//
//	found     another process has published it: the answer
//	granted   it is loaded and published; if an invalidation overtakes that, it goes
//	          around again
//	held      by a writer: it is loaded and not published, see beside.go
//	busy      another process loads it: the job waits for that and looks again
//	unknown   Redis does not answer: it is loaded without a lease and not published
//
// The place comes before the lease. Otherwise the first process to ask in a cold start
// would get the leases of all keys, and have them wait for its places while those of other
// processes are free:
//
//	process A, 64 places             process B, 64 places
//	wants 500 keys                   wants the same 500
//	places and leases for 1 to 64
//	                                 places for 1 to 64: busy, places given back
//	                                 places and leases for 65 to 128
//	loads 1 to 64                    loads 65 to 128
//
// A refresh is a job whose flight nobody waits for. It gives up where others would
// wait.

// maxOvertaken is how often a load that an invalidation overtook is run again. A key
// that is overtaken more often is written faster than it can be loaded; its callers get
// the value that was loaded last, which is right for them: they asked before that load.
const maxOvertaken = 2

// errElsewhere ends a load in the background that another process, or a writer, makes
// needless.
var errElsewhere = errors.New("levee: loaded elsewhere")

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
	c.goOn(ctx, missing, unread)
	if len(looking) > 0 { // last: a hook in there may end this goroutine
		c.run(ctx, looking)
	}
}

// run has jobs look into Redis for as long as ctx lasts, and those without an answer go on.
func (c *Cache[K, V]) run(ctx context.Context, jobs []*job[K, V]) {
	c.contained(jobs, func() {
		missing, unread := c.look(ctx, jobs)
		c.goOn(ctx, missing, unread)
	})
}

// goOn takes jobs to their ends, on other goroutines: those that are missing in Redis, and those
// that a read with ctx has got no answer for.
func (c *Cache[K, V]) goOn(ctx context.Context, missing, unread []*job[K, V]) {
	c.detach(missing)
	c.detach(unread)
	if len(missing) > 0 {
		go c.inParts(missing, c.misses.add)
	}
	switch {
	case len(unread) == 0:
	case ctx.Err() != nil: // the caller has left, which says nothing about Redis
		go c.run(unread[0].ctx, unread)
	default:
		go c.inParts(unread, c.unread.add)
	}
}

// rebuild takes jobs that are missing in Redis to their ends, around and around.
func (c *Cache[K, V]) rebuild(jobs []*job[K, V]) {
	for _, j := range jobs {
		if j.waiter == nil && j.class != background {
			j.waiter = c.fleet.NewWaiter(j.id)
		}
		c.beginRebuild(j)
	}
	failpoint.At("missed")
	for len(jobs) > 0 {
		jobs = c.attempt(jobs)
	}
}

// attempt takes jobs through place, lease, load and publish, and returns those that have to
// do so again.
func (c *Cache[K, V]) attempt(jobs []*job[K, V]) (again []*job[K, V]) {
	ctx, stop := c.loadContext(jobs[0].ctx)
	defer stop()
	place, refusal := c.acquire(ctx, jobs)
	defer place.Release()
	if refusal != nil && !c.mayBeLoadedElsewhere(jobs, refusal) {
		c.finishRefused(jobs, refusal)
		return nil
	}
	if !c.fleet.Shared() { // else the lease step finds what was published while jobs waited for their place
		jobs = slices.DeleteFunc(slices.Clone(jobs), c.filledInQueue)
	}
	granted, held, again := c.lease(jobs)
	if refusal != nil {
		c.abort(granted)
		c.finishRefused(append(granted, held...), refusal)
		return again
	}
	if len(granted)+len(held) == 0 {
		return again
	}
	renewal := c.leased(granted)
	defer renewal.Stop() // after a panic
	c.counts.besideWriter.Add(uint64(len(held)))
	c.load(ctx, place, append(granted, held...))
	renewal.Stop()
	again = append(again, c.publishLoaded(granted)...)
	return append(again, c.confirmBeside(held)...)
}

// filledInQueue ends a job whose key another flight has filled in the local tier. Without Redis
// a nested flight and another one of the same key may both wait for a place: the second finds
// what the first has loaded.
func (c *Cache[K, V]) filledInQueue(j *job[K, V]) bool {
	if j.class != normal {
		return false
	}
	c.decide(j)
	return c.filledMeanwhile(j)
}

// mayBeLoadedElsewhere reports whether jobs that got no place ask for their leases all the
// same: another process may have published their keys, or be loading them.
func (c *Cache[K, V]) mayBeLoadedElsewhere(jobs []*job[K, V], refusal error) bool {
	return jobs[0].class == normal && !c.closed() && !errors.Is(refusal, flight.ErrDeserted)
}

// lease asks for the leases of jobs and ends those that have an answer then. It returns the
// jobs that are to be loaded, by their verdicts, and those that have to ask again.
func (c *Cache[K, V]) lease(jobs []*job[K, V]) (granted, held, again []*job[K, V]) {
	var unknown []*job[K, V]
	now := time.Now()
	for i, grant := range c.askForLeases(jobs) {
		j := jobs[i]
		beside := j.beside
		j.beside, j.lease, j.stands = nil, grant.Lease, grant.Stands
		j.primary = grant.Verdict == fleet.Held
		if grant.Verdict != fleet.Busy {
			c.endLeaseWait(j)
		}
		switch verdict := grant.Verdict; {
		case verdict == fleet.Found:
			if !c.accept(j, grant.Value, time.Now()) {
				j.seen = grant.Value.Data
				again = append(again, j)
			}
		case verdict == fleet.Granted:
			granted = append(granted, j)
		case verdict == fleet.Unknown && j.warms: // every process would load all keys
			c.finish(j, found[V]{}, errNoRedis)
		case verdict == fleet.Unknown:
			unknown = append(unknown, j)
		case j.class == background:
			c.finish(j, found[V]{}, errElsewhere)
		case verdict == fleet.Busy:
			j.remaining = grant.Remaining
			c.handOver([]*job[K, V]{j}, func() { c.waitForLease(j) })
		case beside != nil:
			c.finishBeside(j, beside, time.Now())
		default:
			c.besideWriter(j, now.Add(grant.Remaining))
			held = append(held, j)
		}
	}
	if len(unknown) > 0 {
		c.handOver(unknown, func() { c.loadDegraded(unknown) })
	}
	return granted, held, again
}

// askForLeases is a decision of its own: it returns the values that are in Redis by then.
func (c *Cache[K, V]) askForLeases(jobs []*job[K, V]) []fleet.Grant {
	if len(jobs) == 0 {
		return nil
	}
	ctx, half := jobs[0].ctx, time.Time{} // the earliest of the jobs'
	asks := make([]fleet.Ask, len(jobs))
	for i, j := range jobs {
		j.waiter.Ready()
		c.decide(j)
		asks[i] = fleet.Ask{ID: j.id, Seen: j.seen}
		if !j.half.IsZero() && (half.IsZero() || j.half.Before(half)) {
			half = j.half
		}
		j.half = time.Time{}
	}
	if time.Until(half) > c.o.RedisTimeout/100 { // else they have waited for their place until now, and Redis may be well
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, half)
		defer stop()
	}
	return c.fleet.Begin(ctx, asks...)
}

// waitForLease waits until it may be time to ask for the lease of a key again that another
// process has. Then the job looks first, since the value is likely to be there: a look needs
// no place.
func (c *Cache[K, V]) waitForLease(j *job[K, V]) {
	jobs := []*job[K, V]{j}
	c.beginLeaseWait(j)
	if !j.waiter.Wait(c.closing, j.remaining) {
		c.loadDegraded(jobs)
		return
	}
	missing, unread := c.look(j.ctx, jobs)
	if len(unread) > 0 {
		c.loadDegraded(unread)
		return
	}
	c.rebuild(missing)
}

// loadDegraded loads without a lease and publishes nothing: Redis does not answer, or
// another process has had the lease for too long. It does not happen without Redis.
func (c *Cache[K, V]) loadDegraded(jobs []*job[K, V]) {
	for _, j := range jobs {
		c.endLeaseWait(j)
		c.beginRebuild(j)
		if j.class == normal {
			j.class = degraded
		}
		j.primary = c.o.ReplicaLag > 0 // a writer may stand behind the silence
	}
	ctx, stop := c.loadContext(jobs[0].ctx)
	defer stop()
	place, refusal := c.acquire(ctx, jobs)
	if refusal != nil {
		c.finishRefused(jobs, refusal)
		return
	}
	defer place.Release()
	for _, j := range jobs {
		c.decide(j)
	}
	c.load(ctx, place, jobs)
	for _, j := range jobs {
		if j.loaded.err == nil {
			// A writer, or a replica that lags, may stand behind the silence. And during an
			// outage nothing tells of an invalidation.
			_, size, _, _ := c.format.encode(j.id, j.loaded.entry)
			j.filled = c.keep(j.mark, j.key, j.id, j.loaded.entry, size, maxUnconfirmed, time.Now())
		}
		c.finishLoaded(j)
	}
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
	answer, ok := c.again(j.key, j.want)
	if !ok {
		return false
	}
	j.filled = true
	c.finish(j, answer, nil)
	return true
}

// accept ends a job with a value from Redis if that is an answer.
func (c *Cache[K, V]) accept(j *job[K, V], value fleet.Value, now time.Time) bool {
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
	case state >= fallback, j.class == background && state != fresh, !answer.suits(j.want):
		return false
	}
	c.fill(j, answer.entry, len(value.Data), now)
	if state != fresh {
		c.refresh(j.ctx, &lookup[K, V]{key: j.key, id: j.id, seen: value.Data})
	}
	c.finish(j, answer, nil)
	return true
}
