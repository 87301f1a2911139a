package cache

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/guard"
	"github.com/levee-go/levee/internal/tier"
	"github.com/levee-go/levee/internal/wait"
)

// A job is one key on its way through a flight. It belongs to one goroutine at a time.
type job[K comparable, V any] struct {
	key      K
	id       string
	ctx      context.Context // that of the caller who opened the flight; once it has started, without its end
	flight   *flight.Flight[found[V]]
	own      flight.Flight[found[V]] // what flight points to, if a caller opened it: it saves an allocation
	ended    func(*job[K, V], error) // told of the end of a job that no caller waits for; nil: callers wait
	mark     tier.Mark               // of the local tier, from before the operation that decides the result
	done     atomic.Bool
	left     bool // handed over by the batch that it was in to another goroutine
	class    guard.Class
	warms    bool   // it is one of Warm
	filled   bool   // the result is in the local tier
	looks    bool   // the caller who opened the flight has not read Redis
	detached bool   // ctx is the job's own, see detach
	unread   bool   // Redis gave no answer to the caller who opened the flight
	seen     []byte // what stands in Redis and is no answer
	want     *want  // of the caller who opened the flight, or the one before it; those who have joined look for themselves, see await
	stands   bool   // the lease was granted while seen stood there

	// half is until when Redis may be asked for the first lease: the source has the other half of the
	// time of the caller who opened the flight. Zero: as long as it takes.
	half time.Time

	// primary is true if a replica may not have what a writer has written, or is about to.
	primary bool

	// impatient is true if those who wait have a value that the process has kept: a degraded
	// load does not wait for its place. They are of one process, so it is true of all of them.
	impatient bool

	waiter    *fleet.Waiter
	remaining time.Duration // of the lease that another process has
	observed  observed
	lease     fleet.Lease
	overtaken int

	loaded   loaded[V]
	began    int         // the number of the last caller who had joined when the load began
	beside   *besideLoad // loaded is beside a writer
	size     int         // of loaded, encoded
	storable bool
}

func (c *Cache[K, V]) newJob(ctx context.Context, key K, f *flight.Flight[found[V]]) *job[K, V] {
	return &job[K, V]{key: key, id: f.ID, ctx: ctx, flight: f}
}

func idsOf[K comparable, V any](jobs []*job[K, V]) []string {
	ids := make([]string, len(jobs))
	for i, j := range jobs {
		ids[i] = j.id
	}
	return ids
}

func leasesOf[K comparable, V any](jobs []*job[K, V]) []fleet.Lease {
	leases := make([]fleet.Lease, len(jobs))
	for i, j := range jobs {
		leases[i] = j.lease
	}
	return leases
}

// decide comes before each operation that may decide the result.
func (c *Cache[K, V]) decide(j *job[K, V]) (number int) {
	number = j.flight.Decide()
	j.mark = c.local.Mark(j.id)
	return number
}

// finish ends a job with an answer or an error.
func (c *Cache[K, V]) finish(j *job[K, V], answer found[V], err error) {
	if !j.done.CompareAndSwap(false, true) {
		return
	}
	j.loaded.err = err
	failpoint.At("finish")
	defer c.land(j, answer, err) // also if what follows does not return: hooks are the user's, and may call Goexit
	if j.ended != nil {
		defer j.ended(j, err)
	}
	j.waiter.Close()
	c.endLeaseWait(j)
	c.endRebuild(j, answer, err)
}

// land ends the flight of a job, and runs the next one of those for whom the answer came
// too early.
func (c *Cache[K, V]) land(j *job[K, V], answer found[V], err error) {
	var next *flight.Flight[found[V]]
	if j.loaded.failed {
		j.flight.Failed(j.loaded.rest)
	}
	if err != nil && j.loaded.refused {
		next = j.flight.Refuse(err)
	} else {
		next = j.flight.Finish(answer, err, func() bool { return j.filled && c.isCurrent(j, answer.entry) })
	}
	if next != nil {
		later := []*job[K, V]{c.newJob(j.ctx, j.key, next)}
		later[0].want, later[0].detached = j.want, j.detached
		c.detach(later) // j may have ended on its caller's goroutine, with the caller's context
		go c.run(later[0].ctx, later)
	} else if j.detached {
		c.breaker.Unkeep(j.ctx)
	}
}

// isCurrent reports whether the local tier would give its answer of j to a caller who
// comes now. If so, callers who joined after the decision may have that answer too. With
// a negative DistrustTTL the local tier answers nobody while messages do not arrive. Of strict
// callers it is not the local tier that decides what they may have.
func (c *Cache[K, V]) isCurrent(j *job[K, V], answer *entry[V]) bool {
	return c.o.Local.DistrustTTL >= 0 && !j.want.strict() && j.mark == c.local.Mark(j.id) &&
		(answer.null || !c.cleared(answer))
}

// detach frees jobs from the end of the context of the caller who opened their flights, and
// from the end of the load that this caller may be: the loads of the jobs stay nested ones.
//
//	page X                        page Y                      pages Z, W, ...
//	opens the flight of a row
//	                              joins it, too late
//	the row is loaded, X ends
//	                                                          take all places but Y's
//	                              the next flight of the row,
//	                              with the context of X,
//	                              would wait for a place
func (c *Cache[K, V]) detach(jobs []*job[K, V]) {
	for _, j := range jobs {
		if j.detached { // a chain of flights must not make a chain of contexts
			continue
		}
		if until, ok := wait.Halfway(j.ctx, c.o.RedisTimeout); ok {
			j.half = until
		}
		if j.ctx.Done() != nil {
			j.ctx = context.WithoutCancel(j.ctx)
		}
		j.ctx, j.detached = c.breaker.Keep(j.ctx), true
	}
}

// inParts calls do for parts of jobs, several at a time: as many jobs as one call of
// LoadMany takes or, without LoadMany, one job.
func (c *Cache[K, V]) inParts(jobs []*job[K, V], do func([]*job[K, V])) {
	size, parallel := maxBatch, maxBatches
	if c.source.LoadMany == nil {
		size, parallel = 1, maxSingles
	}
	switch {
	case len(jobs) == 0:
		return
	case len(jobs) <= size:
		c.contained(jobs, func() { do(jobs) })
		return
	}
	var parts errgroup.Group
	parts.SetLimit(parallel)
	for part := range slices.Chunk(jobs, size) {
		parts.Go(func() error {
			c.contained(part, func() { do(part) })
			return nil
		})
	}
	_ = parts.Wait() // errors are those of jobs
}

// contained calls fn, which works on jobs. If it panics or calls Goexit (a hook of the
// user's client may), the jobs end with that error, except those that were handed over.
func (c *Cache[K, V]) contained(jobs []*job[K, V], fn func()) {
	contain.Call(func() error { fn(); return nil }, func(err error) {
		if err != nil {
			c.finishEach(slices.DeleteFunc(slices.Clone(jobs), func(j *job[K, V]) bool { return j.left }), err)
		}
	})
}

// finishEach ends jobs that brought nothing, all of them, also if a hook of one calls Goexit.
func (c *Cache[K, V]) finishEach(jobs []*job[K, V], err error) {
	for _, j := range jobs {
		defer c.finish(j, found[V]{}, err)
	}
}

// handOver has fn work on jobs on another goroutine, beside the batch that they were in.
func (c *Cache[K, V]) handOver(jobs []*job[K, V], fn func()) {
	for _, j := range jobs {
		j.left = true
	}
	go contain.Call(func() error { fn(); return nil }, func(err error) {
		if err != nil {
			c.finishEach(jobs, err)
		}
	})
}

const (
	maxSingles = 64  // loads of one GetMany by Load at a time
	maxBatch   = 256 // keys in one LoadMany and in one pipeline
	maxBatches = 4   // batches of one GetMany at a time
	maxCalls   = 4   // gathered calls of LoadMany at a time
)

// A gatherer lets jobs that come at one moment share a call of LoadMany, and so a place at
// the breaker. While fewer than maxCalls batches are under way, jobs go on at once and take
// along what else is waiting; after that, jobs wait for the end of a batch, and then share
// the next one. There is no timer: the slower the source, the more share a call.
type gatherer[K comparable, V any] struct {
	c  *Cache[K, V]
	do func([]*job[K, V])

	mu      sync.Mutex // guards what follows
	batches int        // under way
	waiting [][]*job[K, V]
}

// add takes jobs on, alone or together with others. They may go on after it has returned.
func (g *gatherer[K, V]) add(jobs []*job[K, V]) {
	if g.c.goAlone(jobs) {
		g.do(jobs)
		return
	}
	g.mu.Lock()
	g.waiting = append(g.waiting, jobs)
	leads := g.batches < maxCalls
	if leads {
		g.batches++
	}
	g.mu.Unlock()
	if leads {
		runtime.Gosched() // jobs that are about to come are taken along
		go g.run()        // not here: these jobs may be in another batch by now, and would end with this one
	}
}

// goAlone reports whether jobs share no call: of one key by Load, and those of a load, which
// must not wait for calls that may wait for it.
func (c *Cache[K, V]) goAlone(jobs []*job[K, V]) bool {
	ctx := jobs[0].ctx
	return c.loadsOne() && len(jobs) == 1 || c.flights.IsLoading(ctx) || c.breaker.Inside(ctx)
}

// run takes a batch on and, if others wait then, leaves them to another goroutine.
func (g *gatherer[K, V]) run() {
	defer func() { // also if the batch calls Goexit
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.waiting) > 0 {
			go g.run()
			return
		}
		g.batches--
	}()
	if jobs := g.next(); len(jobs) > 0 {
		g.c.contained(jobs, func() { g.do(jobs) })
	}
}

// next returns jobs that wait, as many as go into one call.
func (g *gatherer[K, V]) next() (jobs []*job[K, V]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.waiting) > 0 && (len(jobs) == 0 || len(jobs)+len(g.waiting[0]) <= maxBatch) {
		jobs = append(jobs, g.waiting[0]...)
		g.waiting = g.waiting[1:]
	}
	return jobs
}
