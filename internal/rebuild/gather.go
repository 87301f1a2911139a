package rebuild

import (
	"runtime"
	"sync"
)

// maxCalls is how many loads of gathered runs are under way at a time.
const maxCalls = 4

// A gatherer lets runs that come at one moment share a load, and so a place at the breaker. While
// fewer than maxCalls batches are under way, runs go on at once and take along what else is
// waiting; after that, runs wait for the end of a batch, and then share the next one. There is no
// timer: the slower the source, the more share a load.
type gatherer struct {
	together func([]*Run)
	most     int // how many runs one load takes

	mu      sync.Mutex // guards what follows
	batches int        // under way
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

// run takes a batch on and, if others wait then, leaves them to another goroutine.
func (g *gatherer) run() {
	defer func() { // also if the batch calls Goexit
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.waiting) > 0 {
			go g.run()
			return
		}
		g.batches--
	}()
	if runs := g.next(); len(runs) > 0 {
		g.together(runs)
	}
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
