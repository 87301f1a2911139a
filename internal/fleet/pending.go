package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
)

// Pending invalidations
//
// An invalidation that Redis did not confirm may have happened or not. Redis may still
// have the old value, and a lease under which it is about to be published. The writer
// gets an error, and in this process the invalidation is pending, which means
//
//   - it is tried again until Redis confirms it, and
//   - its id is blocked: callers of this process neither read the id from Redis nor
//     publish it there. They load for themselves.
//
// An id has one place, however many writers invalidate it, with the holds to lift with it.
// An attempt that succeeds confirms only the requests from before it began, because it may
// have reached Redis before the write of a later one. For that, every request gets the next
// number of a clock.
//
// Nothing is dropped. When more than maxPending ids wait, one Clear replaces all of them. It ends
// every value whose load began before it, also values that may be served only as fallbacks or are
// still to be published under a lease that has not ended. Until Redis confirms the Clear every id is
// blocked, even if the epoch's key belongs to another application. The Clear lifts no holds; they
// end after Options.Hold.
//
// An invalidation that Redis has done, but too few replicas have confirmed, blocks nothing. It
// is done once more when the replicas are there: a failover may have undone it. If an attempt
// fails meanwhile, that may be a failover, and the invalidation is done again at once. While
// replicas are known to be missing no writer waits for them.
//
// Nor does a caller's own Clear block anything if Redis cannot do it because the epoch's key
// belongs to another application: that may be so for ever.
//
// Each node of a cluster has a goroutine of its own that tries its pending invalidations, so
// that a node that does not reply does not delay those of others.

const (
	maxPending = 10_000
	maxLifts   = 100                   // of one id; further holds end by themselves
	firstRetry = 50 * time.Millisecond // between the first two attempts
	maxRetry   = time.Second           // between any two attempts
	farewell   = time.Second           // for the last attempts, when the group is closed
)

// errUnconfirmed reports that Redis was not used for an id because it has not yet
// confirmed an invalidation.
var errUnconfirmed = errors.New("levee: an invalidation is not confirmed yet")

// A target is an invalidation of an id with the holds to lift, as invalidate.lua takes them. Or it is a
// clear, which blocks every id: of everything or, if id is set, of the tags whose counter has the
// number id.
type target struct {
	id, lift string
	clear    bool
}

// everything is the target of a Clear.
var everything = target{clear: true}

// place returns the key of the target's place, without the holds.
func (t target) place() target { return target{id: t.id, clear: t.clear} }

// A place has the pending requests of one id, or of one clear.
type place struct {
	phase phase
	at    uint64            // the clock's number of the last request
	asked int               // how many requests it has had
	lifts []string          // holds to lift
	all   bool              // a Clear that has replaced invalidations
	node  *redisconn.Outage // the node that has the target, see regroup
}

// A phase is how far an invalidation has come.
type phase uint8

const (
	blocking phase = iota // Redis may not have done it
	open                  // it blocks nothing, but is to be done again
	done                  // Redis has done it, and too few replicas have confirmed that
)

// A pendingRedis does in Redis what pending needs.
type pendingRedis interface {
	// retry invalidates targets, in one round trip or a few, and returns nil for each that is
	// confirmed. If replicas is false it does not wait for replicas, and returns
	// ErrTooFewReplicas if any are wanted.
	retry(ctx context.Context, targets []target, replicas bool) []error
	// nodeOf returns the Outage of the node that has a target.
	nodeOf(target) *redisconn.Outage
	// tryReplicas returns ErrTooFewReplicas if too few replicas confirm a command without effect.
	tryReplicas(context.Context) error
}

// pending has the invalidations of a group that Redis has not confirmed. A goroutine runs
// for each node that has any.
type pending struct {
	redis   pendingRedis
	log     *logonce.Log
	closing context.Context // ends with the group
	work    sync.WaitGroup

	blocking                 atomic.Bool           // some id is blocked
	missing                  atomic.Pointer[error] // of the last tryReplicas, if too few replicas are there
	queued, retried, dropped atomic.Uint64         // see Stats

	mu      sync.Mutex // guards what follows
	limit   int
	clock   uint64
	places  map[target]*place
	blocked int                        // how many places are blocking
	clears  int                        // how many of blocked block every id
	running map[*redisconn.Outage]bool // the nodes with a goroutine
	closed  bool
}

func newPending(closing context.Context, log *logonce.Log, limit int, redis pendingRedis) *pending {
	return &pending{
		redis: redis, log: log, closing: closing, limit: limit,
		places: map[target]*place{}, running: map[*redisconn.Outage]bool{},
	}
}

// blocks reports whether id must be neither read from Redis nor published there.
func (p *pending) blocks(id string) bool {
	if !p.blocking.Load() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	is := p.places[target{id: id}]
	return p.clears > 0 || is != nil && is.phase == blocking
}

// now returns the clock's number, which settle takes for the beginning of an attempt.
func (p *pending) now() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock
}

// add makes pending the targets that have failed. errs has the error, or nil, of each target.
func (p *pending) add(targets []target, errs []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		p.log.Warn("an invalidation is not confirmed and is tried again", logonce.Name("id", targets[i].id), "error", errs[i])
	}
	for i, t := range targets {
		switch {
		case errs[i] == nil:
		case !p.closed:
			p.ask(t, errs[i])
		case !answered(errs[i]):
			p.dropped.Add(1)
		}
	}
}

// ask makes t pending, of which an attempt has ended with err. The caller holds p.mu.
func (p *pending) ask(t target, err error) {
	p.queued.Add(1)
	p.clock++
	is := p.places[t.place()]
	if is == nil && len(p.places) >= p.limit {
		p.merge()
		is = p.places[t.place()]
	}
	if is == nil {
		is = &place{phase: done}
		p.places[t.place()] = is
	}
	is.at, is.asked, is.node = p.clock, is.asked+1, p.redis.nodeOf(t)
	switch {
	case !answered(err):
		p.move(t, is, blocking)
		if t.lift != "" && len(is.lifts) < maxLifts {
			is.lifts = append(is.lifts, t.lift)
		}
	case errors.Is(err, errForeign) && is.phase == done:
		is.phase = open
	}
	p.start(is.node)
}

// answered reports whether Redis has done an invalidation that ended with err, as far as it can: err is
// nil, only replicas are missing, or a key of another type is in the way.
func answered(err error) bool { return err == nil || tooFew(err) || errors.Is(err, errForeign) }

func tooFew(err error) bool { return errors.Is(err, redisconn.ErrTooFewReplicas) }

// merge replaces all pending requests by one Clear. If Redis has done all of them, the Clear blocks
// nothing and waits for replicas too. The caller holds p.mu.
func (p *pending) merge() {
	all := &place{phase: done, at: p.clock, all: true, node: p.redis.nodeOf(everything)}
	for _, is := range p.places {
		all.phase = min(all.phase, is.phase)
		all.asked += is.asked
	}
	clear(p.places)
	p.places[everything] = all
	p.blocked, p.clears = 0, 0
	if all.phase == blocking {
		p.blocked, p.clears = 1, 1
	}
	p.blocking.Store(p.blocked > 0)
	p.start(all.node)
	p.log.Warn("too many invalidations wait for redis: the cache is cleared in their place", "invalidations", all.asked)
}

// move puts a place into a phase. The caller holds p.mu.
func (p *pending) move(t target, is *place, to phase) {
	change := 0
	if is.phase == blocking {
		change--
	}
	if is.phase = to; to == blocking {
		change++
	}
	p.blocked += change
	if t.clear {
		p.clears += change
	}
	p.blocking.Store(p.blocked > 0)
}

// start starts the goroutine of node, unless it runs. The caller holds p.mu.
func (p *pending) start(node *redisconn.Outage) {
	if !p.running[node] && !p.closed {
		p.running[node] = true
		p.work.Go(func() { p.run(node) })
	}
}

// settle notes an attempt that began at began, and returns how many requests it has confirmed.
func (p *pending) settle(targets []target, began uint64, errs []error) (confirmed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.places) == 0 {
		return 0
	}
	for i, t := range targets {
		if !answered(errs[i]) {
			continue
		}
		confirmed += p.confirm(t.place(), t.lift, began, errs[i])
		if t == everything && !errors.Is(errs[i], errForeign) {
			for other := range p.places {
				confirmed += p.confirm(other, "", began, errs[i])
			}
		}
	}
	return confirmed
}

// confirm notes that Redis has done the requests of t up to began, with err, and lifted the holds in
// lifted. It returns how many requests are confirmed. The caller holds p.mu.
func (p *pending) confirm(t target, lifted string, began uint64, err error) (confirmed int) {
	is := p.places[t]
	if is == nil || is.at > began {
		return 0
	}
	if lifted != "" {
		is.lifts = slices.DeleteFunc(is.lifts, func(hold string) bool { return strings.Contains(lifted, hold) })
	}
	switch {
	case errors.Is(err, errForeign) && is.all:
	case errors.Is(err, errForeign), len(is.lifts) > 0:
		p.move(t, is, open)
	case err != nil:
		p.move(t, is, done)
	default:
		p.move(t, is, done)
		delete(p.places, t)
		return is.asked
	}
	return 0
}

// giveUp drops the pending requests of node. It says how many: a scrape in the last second of a process
// is rare.
func (p *pending) giveUp(node *redisconn.Outage) {
	if dropped := p.drop(node); dropped > 0 {
		p.dropped.Add(dropped)
		p.log.Last("invalidations are given up, since the process ends: old values may be served until their TTL", "invalidations", dropped)
	}
}

// drop drops the pending requests of node, and returns how many invalidations they were.
func (p *pending) drop(node *redisconn.Outage) (dropped uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t, is := range p.places {
		if is.node != node {
			continue
		}
		if is.phase == blocking {
			dropped += uint64(is.asked)
		}
		p.move(t, is, done)
		delete(p.places, t)
	}
	delete(p.running, node)
	p.missing.Store(nil)
	return dropped
}

// close waits until all requests are confirmed or given up. The context closing must have ended.
func (p *pending) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.work.Wait()
}

func (p *pending) length() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.places)
}
