package cache

import (
	"runtime"
	"sync"
)

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
