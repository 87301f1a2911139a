package fleet

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// run tries until nothing is pending at node.
func (p *pending) run(node *redisconn.Outage) {
	retries := wait.Backoff{First: firstRetry, Max: maxRetry}
	for p.wait(node, retries.Next()) {
		if p.round(node, time.Time{}) {
			retries.Reset()
		}
		if p.idle(node) {
			return
		}
	}
	p.round(node, time.Now().Add(farewell))
	p.giveUp(node)
}

// round tries all that is pending at node once, and reports whether Redis has done any of it. What
// Redis has not done comes first, and need not wait for replicas: there may be none. It ends at a
// failure and, if that is not zero, at the time until.
func (p *pending) round(node *redisconn.Outage, until time.Time) (progress bool) {
	progress, failed := p.tryAll(node, p.at(node, false), false, until)
	replicated := p.at(node, true)
	if failed || len(replicated) == 0 {
		return progress
	}
	switch err := p.redis.tryReplicas(context.Background()); {
	case tooFew(err):
		p.missing.Store(&err)
		return progress
	case err != nil:
		p.doubt(node)
		return progress
	}
	p.missing.Store(nil)
	more, _ := p.tryAll(node, replicated, true, until)
	return progress || more
}

// at lists the places at node: those that are done, or the others, of which those that block most
// come first.
func (p *pending) at(node *redisconn.Outage, isDone bool) (places []target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, want := range []phase{blocking, open, done} {
		for t, is := range p.places {
			if is.node == node && is.phase == want && isDone == (want == done) {
				places = append(places, t)
			}
		}
	}
	if i := slices.Index(places, everything); i > 0 {
		places[0], places[i] = places[i], places[0]
	}
	return places
}

// tryAll makes attempts, until one fails. It begins with a single invalidation, and doubles their
// number with each success.
func (p *pending) tryAll(node *redisconn.Outage, places []target, replicas bool, until time.Time) (progress, failed bool) {
	for size := 1; len(places) > 0; size = min(2*size, maxTargets) {
		n := min(size, len(places))
		targets, began := p.take(places[:n], replicas)
		places = places[n:]
		if len(targets) == 0 { // somebody else has had them confirmed
			continue
		}
		errs := p.redis.retry(context.Background(), targets, replicas)
		p.retried.Add(uint64(p.settle(targets, began, errs)))
		progress = progress || slices.ContainsFunc(errs, func(err error) bool { return err == nil || !replicas && tooFew(err) })
		if slices.ContainsFunc(errs, func(err error) bool { return !answered(err) }) {
			p.doubt(node)
			p.regroup(node, targets[0])
			return progress, true
		}
		if replicas && slices.ContainsFunc(errs, tooFew) || p.over(until) {
			return progress, true
		}
	}
	return progress, false
}

// over reports whether a round that is to end at until, or never if that is zero, has to give way to
// the last one.
func (p *pending) over(until time.Time) bool {
	if until.IsZero() {
		return p.closing.Err() != nil
	}
	return time.Now().After(until)
}

// take returns the moment, and of places what is still to be done.
func (p *pending) take(places []target, isDone bool) (targets []target, now uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range places {
		if is := p.places[t]; is != nil && isDone == (is.phase == done) {
			t.lift = strings.Join(is.lifts, " ")
			targets = append(targets, t)
		}
	}
	return targets, p.clock
}

// doubt has everything at node that was done be done again: what has failed there may have been a
// failover, which has undone it.
func (p *pending) doubt(node *redisconn.Outage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t, is := range p.places {
		if is.node == node && is.phase == done {
			p.move(t, is, open)
		}
	}
}

// doubtAll is doubt for all nodes.
func (p *pending) doubtAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t, is := range p.places {
		if is.phase == done {
			p.move(t, is, open)
		}
	}
}

// regroup gives what is pending at node to the nodes that have it by now, if one of those
// targets is elsewhere: slots may have moved, or the nodes of the cluster were not known yet.
func (p *pending) regroup(node *redisconn.Outage, one target) {
	if p.redis.nodeOf(one) == node {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for t, is := range p.places {
		if is.node == node {
			is.node = p.redis.nodeOf(t)
			p.start(is.node)
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
		wait.Sleep(p.closing, pause)
	}
	return p.closing.Err() == nil
}

// idle reports whether nothing is pending at node. If so, its goroutine has to end.
func (p *pending) idle(node *redisconn.Outage) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, is := range p.places {
		if is.node == node {
			return false
		}
	}
	delete(p.running, node)
	p.missing.Store(nil)
	return true
}
