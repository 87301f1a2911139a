package fleet

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// Pending invalidations
//
// An invalidation that Redis did not confirm may have happened or not. The old
// value may still stand there, and so may a lease under which it is about to be
// published. The writer gets an error, and the process acts on what it knows: the
// invalidation is pending, which means
//
//   - it is tried again until Redis confirms it, and
//   - its id is blocked: nobody in this process reads the id from Redis or publishes
//     it there. They load for themselves.
//
// An invalidation that Redis has done, but too few replicas have confirmed, is pending
// too, and does not block its id. Nor does a Clear block anything that Redis cannot do
// because somebody else's key stands where the epoch belongs: that may be so for ever.
//
// An id that two writers invalidate is pending once. An attempt that succeeds
// confirms only what was asked for before it began, because it may have come before
// the write of the second. For that, every request gets the next number of a clock.
//
// Each node of a cluster has a goroutine of its own that tries what is pending there: a
// node that does not answer keeps nothing of the others pending.
//
// At most maxPending invalidations are. Later ones are dropped, and since nobody
// remembers their ids, the whole group leaves Redis alone until none is pending
// (overflowed). After that, the old values of the dropped ones may answer for the
// rest of their TTL.

const (
	maxPending = 10_000
	firstRetry = 50 * time.Millisecond // between the first two attempts
	maxRetry   = time.Second           // between any two
	farewell   = time.Second           // for the last attempts, when the group is closed
)

// errUnconfirmed reports that Redis was not asked for an id because it may not yet
// know of an invalidation.
var errUnconfirmed = errors.New("levee: an invalidation is not confirmed yet")

// A target is an invalidation of an id, and the hold to lift with it, "" for none. Or it
// is a clear, which blocks every id: of everything or, if there is an id, of the tags whose
// counter has this number.
type target struct {
	id, lift string
	clear    bool
}

// A request says when an invalidation was last asked for, and whether it blocks its
// id: not if it is done, see done.
type request struct {
	at     uint64
	blocks bool
	node   *redisconn.Outage // of the node that has the target, see regroup
}

// pending holds the invalidations of a group that Redis has not confirmed. For each node
// a goroutine runs while there are any.
type pending struct {
	drop    func(context.Context, []target) []error // invalidates, in one round trip; nil for each that is confirmed
	node    func(target) *redisconn.Outage          // the Outage of the node that has a target
	log     *logonce.Log
	closing context.Context // ends with the group
	work    sync.WaitGroup

	blocking                 atomic.Bool   // blocks is true for some id
	queued, retried, dropped atomic.Uint64 // see Stats

	mu         sync.Mutex // guards what follows
	limit      int
	clock      uint64
	requests   map[target]request
	blocked    map[string]int             // by id: how many requests block it
	clears     int                        // how many block every id
	overflowed bool                       // a request that blocks was dropped for lack of room
	running    map[*redisconn.Outage]bool // the goroutines
	closed     bool
}

func newPending(closing context.Context, log *logonce.Log, drop func(context.Context, []target) []error, node func(target) *redisconn.Outage) *pending {
	return &pending{
		drop: drop, node: node, log: log, closing: closing, limit: maxPending,
		requests: map[target]request{}, blocked: map[string]int{}, running: map[*redisconn.Outage]bool{},
	}
}

// blocks reports whether id must not be read from Redis nor published there.
func (p *pending) blocks(id string) bool {
	if !p.blocking.Load() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.overflowed || p.clears > 0 || p.blocked[id] > 0
}

// now returns a moment for settle.
func (p *pending) now() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock
}

// add makes those targets pending that have failed. errs has an error, or nil, for each.
func (p *pending) add(targets []target, errs []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		p.log.Warn("an invalidation is not confirmed and is tried again", logonce.Name("id", targets[i].id), "error", errs[i])
	}
	for i, t := range targets {
		if errs[i] == nil {
			continue
		}
		blocks := !done(errs[i])
		was, known := p.requests[t]
		if !known && blocks && len(p.requests) >= p.limit {
			p.dropOneForReplicas()
		}
		if p.closed || !known && len(p.requests) >= p.limit {
			p.dropped.Add(1)
			if !p.closed {
				p.log.Error("an invalidation is not confirmed, and there is no room to try it again", logonce.Name("id", t.id))
			}
			p.overflowed = p.overflowed || blocks
			continue
		}
		p.queued.Add(1)
		p.clock++
		p.put(t, request{p.clock, blocks || was.blocks, p.node(t)})
		p.start(p.requests[t].node)
	}
	p.updateBlocking()
}

// done reports whether Redis has done what it can of an invalidation that ended with err:
// if there is an error, only replicas are missing, or a key that is not ours must go first.
func done(err error) bool {
	return err == nil || errors.Is(err, redisconn.ErrTooFewReplicas) || errors.Is(err, errForeign)
}

// start has a goroutine try what is pending at node. The caller holds p.mu.
func (p *pending) start(node *redisconn.Outage) {
	if !p.running[node] && !p.closed {
		p.running[node] = true
		p.work.Go(func() { p.run(node) })
	}
}

// settle takes out the requests that an attempt, begun at began, has confirmed. Those that
// are done with an error stay, and do not block.
func (p *pending) settle(targets []target, began uint64, errs []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, t := range targets {
		if !done(errs[i]) {
			continue
		}
		for _, t := range []target{t, {id: t.id, clear: t.clear}} { // lifting a hold is an invalidation as well
			was, known := p.requests[t]
			switch {
			case !known || was.at > began:
			case errs[i] != nil:
				p.put(t, request{at: was.at, node: was.node})
			default:
				p.remove(t)
			}
		}
	}
	p.updateBlocking()
}

// dropOneForReplicas makes room by a request that only waits for replicas: to forget one
// that blocks its id would cut the whole group off from Redis. The caller holds p.mu.
func (p *pending) dropOneForReplicas() {
	for t, r := range p.requests {
		if !r.blocks {
			p.remove(t)
			p.dropped.Add(1)
			return
		}
	}
}

// put and remove keep blocked in step with requests. The caller holds p.mu.
func (p *pending) put(t target, r request) {
	p.remove(t)
	p.requests[t] = r
	switch {
	case r.blocks && t.clear:
		p.clears++
	case r.blocks:
		p.blocked[t.id]++
	}
}

func (p *pending) remove(t target) {
	switch blocks := p.requests[t].blocks; {
	case blocks && t.clear:
		p.clears--
	case blocks:
		if p.blocked[t.id]--; p.blocked[t.id] == 0 {
			delete(p.blocked, t.id)
		}
	}
	delete(p.requests, t)
}

// updateBlocking brings overflowed and blocking up to date. The caller holds p.mu.
func (p *pending) updateBlocking() {
	p.overflowed = p.overflowed && len(p.requests) > 0
	p.blocking.Store(p.overflowed || p.clears > 0 || len(p.blocked) > 0)
}

// run tries until nothing is pending at node. After a failure it goes on with a single
// invalidation, and doubles their number with each success.
func (p *pending) run(node *redisconn.Outage) {
	size, pause := 1, firstRetry
	var end time.Time // when to give up; zero: the group is in use
	for {
		if end.IsZero() && !p.wait(node, pause) {
			end = time.Now().Add(farewell)
		}
		for {
			targets, began := p.next(node, size)
			if len(targets) == 0 {
				return
			}
			if !p.try(targets, began) {
				p.regroup(node, targets[0])
				break
			}
			size, pause = min(2*size, maxTargets), firstRetry
			if !end.IsZero() && time.Now().After(end) {
				break
			}
		}
		if !end.IsZero() {
			p.giveUp(node)
			return
		}
		size, pause = 1, min(2*pause, maxRetry)
	}
}

// try makes an attempt, and reports whether all of it is confirmed.
func (p *pending) try(targets []target, began uint64) bool {
	errs := p.drop(context.Background(), targets)
	p.settle(targets, began, errs)
	failed := 0
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	p.retried.Add(uint64(len(targets) - failed))
	return failed == 0
}

// regroup gives what is pending at node to the nodes that have it by now, if one of those
// targets is elsewhere: slots may have moved, or the nodes of the cluster were not known yet.
func (p *pending) regroup(node *redisconn.Outage, one target) {
	if p.node(one) == node {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for t, r := range p.requests {
		if r.node == node {
			r.node = p.node(t)
			p.requests[t] = r
			p.start(r.node)
		}
	}
}

// wait waits until it is time for another attempt at node: when the pause is over or,
// during an outage, when that ends. It reports false if the group is being closed.
func (p *pending) wait(node *redisconn.Outage, pause time.Duration) bool {
	if node.Down() {
		select {
		case <-node.Up():
		case <-p.closing.Done():
		}
	} else {
		wait.Sleep(p.closing, wait.Jitter(pause, 0.25))
	}
	return p.closing.Err() == nil
}

// next returns the moment and up to size targets of node, those that block readers first.
// If there are none, the goroutine ends.
func (p *pending) next(node *redisconn.Outage, size int) (targets []target, now uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, blocks := range []bool{true, false} {
		for t, r := range p.requests {
			if r.node == node && r.blocks == blocks && len(targets) < size {
				targets = append(targets, t)
			}
		}
	}
	if len(targets) == 0 {
		delete(p.running, node)
	}
	return targets, p.clock
}

// giveUp drops what is pending at node.
func (p *pending) giveUp(node *redisconn.Outage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t, r := range p.requests {
		if r.node == node {
			p.remove(t)
			p.dropped.Add(1)
		}
	}
	delete(p.running, node)
	p.updateBlocking()
}

// close waits until everything is confirmed or given up, after closing has ended.
func (p *pending) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.work.Wait()
}

func (p *pending) length() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.requests)
}
