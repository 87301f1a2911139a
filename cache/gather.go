package cache

import (
	"runtime"
	"slices"
	"sync"
)

const (
	maxSingles = 64  // loads of one GetMany by Load at a time
	maxBatch   = 256 // keys in one LoadMany and in one pipeline
	maxBatches = 4   // batches of one GetMany at a time
	maxCalls   = 4   // gathered calls of LoadMany at a time
)

// A gatherer lets loads that wait at one moment share a call of LoadMany. While fewer
// than maxCalls run, a load begins at once and takes along what else is waiting; after
// that, loads wait for the end of a call, and then share the next one. There is no
// timer: the slower the source, the more share a call. The zero gatherer is ready.
type gatherer[K comparable, V any] struct {
	mu      sync.Mutex // guards what follows
	calls   int        // that run
	waiting []*gathered[K, V]
}

// A gathered is one load that waits for its call.
type gathered[K comparable, V any] struct {
	jobs []*job[K, V]
	done chan struct{}
}

// load has call load jobs, together with others', and returns when they are loaded. It
// reports false if they are not: inner was closed before their call began.
func (g *gatherer[K, V]) load(jobs []*job[K, V], inner <-chan struct{}, call func([]*job[K, V])) (done bool) {
	own := &gathered[K, V]{jobs, make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, own)
	leads := g.calls < maxCalls
	if leads {
		g.calls++
	}
	g.mu.Unlock()
	if leads {
		go func() { // the call may be one of others' loads: this one must be free to be withdrawn
			runtime.Gosched() // loads that are about to wait come along
			g.run(call)
		}()
	}
	select {
	case <-own.done:
		return true
	case <-inner:
	}
	if g.withdraw(own) {
		return false
	}
	<-own.done
	return true
}

// withdraw takes a load off the queue. It reports false if its call has begun.
func (g *gatherer[K, V]) withdraw(own *gathered[K, V]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, own)
	if i < 0 {
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	return true
}

// run makes one call and, if others wait then, leaves the next one to another
// goroutine.
func (g *gatherer[K, V]) run(call func([]*job[K, V])) {
	var jobs []*job[K, V]
	together := g.next()
	for _, load := range together {
		jobs = append(jobs, load.jobs...)
	}
	defer func() { // also if call should panic
		for _, load := range together {
			close(load.done)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.waiting) > 0 {
			go g.run(call)
			return
		}
		g.calls--
	}()
	if len(jobs) > 0 {
		call(jobs)
	}
}

// next takes loads off the queue, as many as go into one call.
func (g *gatherer[K, V]) next() (together []*gathered[K, V]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, keys := 0, 0
	for n < len(g.waiting) && (n == 0 || keys+len(g.waiting[n].jobs) <= maxBatch) {
		keys += len(g.waiting[n].jobs)
		n++
	}
	together, g.waiting = g.waiting[:n:n], g.waiting[n:]
	return together
}
