// Package flight is a singleflight whose results are safe to share while writers
// invalidate: callers of one process who want the same id at the same time share one
// flight, which reads and loads for all of them.
//
// # The join sequence
//
// A plain singleflight gives its result to all callers who joined before it ended.
// If a writer invalidates meanwhile, that is wrong:
//
//	reader A               writer                      reader B
//	1 joins, as the first
//	2 reads v1 from Redis
//	                       3 commits v2
//	                       4 Invalidate returns nil
//	                                                   5 Get begins and joins A's flight
//	6 ends the flight
//	                                                   7 gets v1, read before its Get began
//
// B was promised that it does not see v1. So every caller takes a number when it
// joins, and the goroutine that runs the flight, the runner, calls [Flight.Decide]
// just before each operation that may decide the result: the read that finds a value,
// or the commit that publishes one. Decide notes the highest number so far. Callers up
// to that number may take the result, because they joined before it was decided. B has a
// higher number and may not: B and all others who came late go on to the next flight,
// which begins with a read of its own. No caller waits for more than two flights that
// bring a value.
//
// An error goes to all callers, since it carries no value that could be old. The exception
// is ErrDeserted, which goes only to callers who have left.
//
// # Fallbacks
//
// An old value that may be served if the load fails or takes too long (stale-if-error) is
// no part of the flight: each caller reads its own. That read began after the caller's Get
// did, so it needs no number. See [Patience].
//
// # Held errors
//
// The error of a load is held for a while: until then Join returns it for the id, so that
// callers who waited do not retry one after another.
//
// # Nested callers
//
// A load may read other ids, and its own callers wait meanwhile. It must not join the flight
// of a caller who waits for the place that the load has. Where one load at a time may run:
//
//	reader A                              reader B
//	1 opens the flight of a, whose
//	  load takes the only place
//	                                      2 opens the flight of b, whose load
//	                                        waits for a place
//	3 the load of a reads b: in B's
//	  flight it would wait for its own end
//
// So callers for whom [Group.Nested] reports true have flights of their own: the load of a
// opens another flight of b, whose load runs in the place of a's load. The next nested
// caller who wants b joins it. Two flights of an id may run at one time, and the lease
// lets one of them load.
//
// # Strict callers
//
// A caller who refuses values that others take, such as an old one, joins with strict. Strict callers
// have flights and held errors of their own: no other caller waits for their loads. A flight's result
// may still not suit one of its callers, who then joins again.
//
// # Re-entrance
//
// A load that reads its own id would wait for itself. [Group.Loading] marks the contexts
// of loads, and Join returns [ErrReentrant] to such a caller.
package flight

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

var (
	// ErrClosed reports that the group has been closed.
	ErrClosed = errors.New("flight: closed")
	// ErrReentrant reports that the caller's context belongs to a load of the same id,
	// see [Group.Loading].
	ErrReentrant = errors.New("flight: a load has read its own key")
)

// A Group holds the flights of one cache. Their results are any, and no type parameter, so that the
// package is compiled once and not for each type of keys and values. A Group may be
// used concurrently.
type Group struct {
	// Nested reports whether ctx belongs to a nested caller. It may be nil, and must not be
	// changed after the first Join. It is called with the group's mutex held.
	Nested func(context.Context) bool

	errorHold time.Duration

	mu       sync.Mutex                // guards what follows, and the fields of flights that say so
	flights  [apart]map[string]*Flight // that run, by kind and id
	failures [2]map[string]*failures   // held errors by id: of strict callers' flights, after those of all others
	running  int                       // flights that have not finished
	closed   bool
	idle     chan struct{} // closed when the group is closed and no flight runs
}

// A kind says which callers share a flight. For each id one flight of each kind may run; of the kind
// apart, any number.
type kind uint8

const (
	plain kind = iota
	strict
	nested       // for nested callers
	nestedStrict // nested | strict
	alone        // made by Alone: no caller joins it
	apart        // made by Apart: no caller joins it, and others like it may run
)

// joined reports whether callers join flights of k.
func (k kind) joined() bool { return k < alone }

// side returns which of Group.failures has the held errors of k.
func (k kind) side() int {
	if k.joined() {
		return int(k & strict)
	}
	return int(plain)
}

// NewGroup returns a Group that holds errors for errorHold, plus or minus a fifth. If
// errorHold is negative, it holds none.
func NewGroup(errorHold time.Duration) *Group {
	g := &Group{errorHold: errorHold, idle: make(chan struct{})}
	for k := range g.flights {
		g.flights[k] = map[string]*Flight{}
	}
	for k := range g.failures {
		g.failures[k] = map[string]*failures{}
	}
	return g
}

// A Flight gets the value of one id for all callers who join it. The caller who opened
// the flight has it run: the runner calls Decide before each operation that may decide
// the result, and Finish or Refuse once.
type Flight struct {
	ID    string
	group *Group
	kind  kind

	// Guarded by Group.mu. decidedAt does not change after Finish.
	done       chan struct{} // closed by Finish; nil while no caller waits
	joined     int           // callers so far; each has its number, from 1
	decidedAt  int           // callers up to this number may take the result
	crowd      *crowd        // nil: the flight is in no Waiting
	desertedAt int           // callers up to this number have left, see Waiting
	left       []int         // numbers of the callers who have left
	deadline   time.Time     // the latest deadline of a caller
	patient    bool          // a caller has no deadline
	fallback   bool          // a caller had a fallback when it joined
	failed     bool          // set by Failed
	forgotten  bool          // Forget was called while the flight ran
	retryAfter time.Duration

	// Written once by Finish before it sets over, read only after that.
	over   atomic.Bool
	result any
	err    error
	next   *Flight // for the callers beyond decidedAt
}

// A Caller has joined a flight with its number.
type Caller struct {
	Flight *Flight
	number int
}

// Wait returns the result that the caller may take, and whether the caller is the first
// of those who may. It blocks until the flight or ctx ends, and returns the caller's
// fallback earlier if p says so. The error is that of Finish, Refuse or ctx.
func (c Caller) Wait(ctx context.Context, p Patience) (result any, first bool, err error) {
	f, number := c.Flight, c.number
	var a alarms
	waits := false
	for {
		if !f.over.Load() {
			if !waits { // the alarms are made only when needed: the flight may be over when its caller gets here
				a, waits = p.alarms(ctx), true
				defer a.stop()
			}
			if result, ended, err := f.wait(ctx, a, p); ended {
				if ctx.Err() != nil { // otherwise it took its fallback, and the load goes on for later callers
					f.leave(number)
				}
				return result, number == 1, err
			}
		}
		if number <= f.decidedAt {
			return f.result, number == 1, f.err
		}
		number -= f.decidedAt
		f = f.next
	}
}

// wait waits for the end of f. ended reports that the caller leaves before that, with its
// fallback or the error of ctx.
func (f *Flight) wait(ctx context.Context, a alarms, p Patience) (result any, ended bool, err error) {
	done := f.end()
	for {
		select {
		case <-done:
			return result, false, nil
		case <-ctx.Done():
			if f.over.Load() { // f ended meanwhile, for example while the fallback was read
				return result, false, nil
			}
			if fallback, ok := p.fallback(); ok {
				return fallback, true, nil
			}
			return result, true, wait.Ended(ctx)
		case <-ring(a.lead):
			p.fallback() // read it while there is time
		case <-ring(a.soft):
			if fallback, ok := p.fallback(); ok {
				return fallback, true, nil
			}
			a.soft.Reset(p.SoftTimeout) // there may be a fallback later
		}
	}
}

// end returns a channel that is closed when f ends.
func (f *Flight) end() <-chan struct{} {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if f.done == nil {
		f.done = make(chan struct{})
		if f.over.Load() {
			close(f.done)
		}
	}
	return f.done
}

// Ready reports whether the flight has ended with a result or error that the caller may take: Wait
// returns at once.
func (c Caller) Ready() bool { return c.Flight.over.Load() && c.number <= c.Flight.decidedAt }

// Decide lets all callers who have joined so far take the result of the runner's next
// operation, and returns the number of the last of these callers.
func (f *Flight) Decide() int {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if !f.over.Load() {
		f.decidedAt = f.joined
	}
	return f.decidedAt
}

// TakeBack goes back to the earlier Decide that returned number. The runner calls it
// when the value that it loaded after that Decide was not published: callers who joined
// later may not take such a value.
func (f *Flight) TakeBack(number int) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if !f.over.Load() {
		f.decidedAt = number
	}
}

// Finish ends the flight:
//
//   - Without an error the callers up to the last Decide get result. If forAll returns
//     true, callers who joined later get it too: Finish calls forAll with the group's
//     mutex held, so no caller joins between that call and the end. A nil forAll is false.
//   - An error goes to all callers, and is held.
//
// The remaining callers go on to the flight that Finish returns, which the runner has to
// run as well. Finish returns nil if none remain.
func (f *Flight) Finish(result any, err error, forAll func() bool) (next *Flight) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if err == nil {
		f.succeeded()
	}
	switch {
	case err != nil:
		f.holdError(err, false)
		f.decidedAt = f.joined
	case f.joined > f.decidedAt && forAll != nil && forAll():
		f.decidedAt = f.joined
	}
	return f.finish(result, err)
}

// Refuse ends the flight with the error of a load that was not started, for lack of time or
// because all callers have left. The error says nothing about the source, so it is held only
// for callers with a fallback. ErrDeserted is not held: callers who joined after the others
// had left go on to the flight that Refuse returns, as with Finish.
func (f *Flight) Refuse(err error) (next *Flight) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if errors.Is(err, ErrDeserted) && !f.group.closed {
		f.decidedAt = f.desertedAt
	} else {
		f.holdError(err, true)
		f.decidedAt = f.joined
	}
	return f.finish(nil, err)
}

// finish ends the flight for the callers up to decidedAt, and opens the next one for the
// others. The caller holds Group.mu.
func (f *Flight) finish(result any, err error) (next *Flight) {
	g := f.group
	if f.kind != apart {
		delete(g.flights[f.kind], f.ID)
	}
	if f.joined > f.decidedAt {
		next = g.open(f.ID, f.kind, &Flight{})
		f.inherit(next)
	}
	f.result, f.err, f.next = result, err, next
	f.over.Store(true)
	if f.done != nil {
		close(f.done)
	}
	g.ended()
	return next
}

// Close makes Join return ErrClosed. Runners still have to finish their flights; the
// returned channel is closed when all have.
func (g *Group) Close() (idle <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.closed = true
		g.running++ // undone by ended, which closes idle if no flight runs
		g.ended()
	}
	return g.idle
}

// ended counts a flight that has finished. The caller holds g.mu.
func (g *Group) ended() {
	if g.running--; g.running == 0 && g.closed {
		close(g.idle)
	}
}

// Joined returns how many callers have joined the running flight of id, 0 if there is none. It looks at
// neither nested nor strict flights.
func (g *Group) Joined(id string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.flights[plain][id]; f != nil {
		return f.joined
	}
	return 0
}

// Peek reports whether a flight of id runs that callers can join, and returns the error
// held for callers of id who are not strict and have a fallback, nil if there is none. It
// changes nothing.
func (g *Group) Peek(id string) (running bool, held error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, flights := range g.flights[:alone] {
		running = running || flights[id] != nil
	}
	return running, g.failures[plain][id].heldFor(withFallback)
}
