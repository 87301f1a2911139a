package fleet

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// run is the goroutine of node. It tries the pending requests until there are none.
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
	if len(p.at(node, false)) > 0 { // an outage may be over before the next probe notices
		node.WaitUp(context.Background(), farewell)
	}
	p.round(node, time.Now().Add(farewell))
	p.giveUp(node)
}

// round tries all pending requests of node once, and reports whether Redis has done any. Requests that
// Redis has not done come first, and do not wait for replicas, since there may be none. round ends at a
// failure and, if until is not zero, at that time.
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

// at returns the places of node: if isDone, those in the phase done; if not, all others, a Clear first,
// then the blocking ones.
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

// tryAll tries places until an attempt fails. The first attempt has a single place, and each success
// doubles the number.
func (p *pending) tryAll(node *redisconn.Outage, places []target, replicas bool, until time.Time) (progress, failed bool) {
	for size := 1; len(places) > 0; size = min(2*size, maxTargets) {
		n := min(size, len(places))
		targets, began := p.take(places[:n], replicas)
		places = places[n:]
		if len(targets) == 0 { // another call has had them confirmed
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

// over reports whether a round has to end: the last one at until, the others, for which until is
// zero, when the group is being closed.
func (p *pending) over(until time.Time) bool {
	if until.IsZero() {
		return p.closing.Err() != nil
	}
	return time.Now().After(until)
}

// take returns the targets of places that are still in the phase to try, and the clock's number.
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

// doubt makes all done requests of node be done again: the attempt that failed may have met a
// failover, which has undone them.
func (p *pending) doubt(node *redisconn.Outage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t, is := range p.places {
		if is.node == node && is.phase == done {
			p.move(t, is, open)
		}
	}
}

// doubtAll makes the done requests of all nodes be done again.
func (p *pending) doubtAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t, is := range p.places {
		if is.phase == done {
			p.move(t, is, open)
		}
	}
}

// regroup moves the pending requests of node to the nodes that have them now, if one is no longer
// the target of node: slots may have moved, or the nodes of the cluster were not known before.
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

// wait waits until it is time for another attempt at node: until the pause is over or,
// during an outage, until the outage ends. It reports false if the group is being closed.
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

// idle reports whether nothing is pending at node. If it returns true, its goroutine has to end.
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
