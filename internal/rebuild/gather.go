package rebuild

import (
	"runtime"
	"sync"
	"time"
)

const (
	maxCalls = 4                      // loads of gathered runs under way at a time
	slow     = 500 * time.Millisecond // after its place, a load no longer counts as one of them
)

// A gatherer lets runs that come at one moment share a load, and so a place at the breaker. While
// fewer than maxCalls batches are under way, runs go on at once and take along what else is
// waiting; after that, runs wait for the end of a batch, and then share the next one: the slower the
// source, the more share a load. From when it has its place, a batch counts for at most slow. Otherwise
// four loads that hang would stop all others, and the breaker would see too few calls to open. While it
// waits for its place it counts: other batches would wait behind it, and the longer, the smaller they are.
type gatherer struct {
	together func(runs []*Run, placed func())
	most     int // how many runs one load takes

	mu      sync.Mutex // guards what follows
	batches int        // under way, but not with a place for longer than slow
	waiting [][]*Run
}

// shares reports whether runs wait for others to share a load with: not where all loads are of single
// keys, nor a key that came by itself and is loaded by itself, nor runs of a load, which must not wait
// for loads that may wait for it.
func (e *Engine) shares(runs []*Run) bool {
	r := runs[0]
	alone := e.Batch == 1 || e.Singles && len(runs) == 1 && !r.paged || r.Purpose >= Warm
	return !alone && !e.Flights.IsLoading(r.ctx) && !e.Breaker.Inside(r.ctx)
}

// add takes runs on, alone or together with others. They may go on after it has returned.
func (g *gatherer) add(runs []*Run) {
	g.mu.Lock()
	g.waiting = append(g.waiting, runs)
	leads := g.batches < maxCalls
	if leads {
		g.batches++
	}
	g.mu.Unlock()
	if leads {
		runtime.Gosched() // runs that are about to come are taken along
		go g.run()        // not here: these runs may be in another batch by now, and would end with this one
	}
}

// run takes a batch on, and frees its slot at its end, or slow after it has its place.
func (g *gatherer) run() {
	var late *time.Timer
	defer func() { // also if the batch calls Goexit
		if late == nil || late.Stop() {
			g.free()
		}
	}()
	if runs := g.next(); len(runs) > 0 {
		g.together(runs, func() { late = time.AfterFunc(slow, g.free) })
	}
}

// free leaves the slot of a batch to runs that wait.
func (g *gatherer) free() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) > 0 {
		go g.run()
		return
	}
	g.batches--
}

// next returns runs that wait, as many as go into one load.
func (g *gatherer) next() (runs []*Run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.waiting) > 0 && (len(runs) == 0 || len(runs)+len(g.waiting[0]) <= g.most) {
		runs = append(runs, g.waiting[0]...)
		g.waiting = g.waiting[1:]
	}
	return runs
}
