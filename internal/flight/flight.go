// Package flight is a singleflight whose result is safe to share while writers
// invalidate: callers of one process who want the same id at the same time share one
// effort.
//
// # The join sequence
//
// A plain singleflight gives its result to everybody who joined before it ended.
// Beside an invalidation that is wrong:
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
// to it may take the result, because they asked before it was decided. B has a higher
// number and may not: B and all others who came late go on to the next flight, which
// begins with a read of its own. Nobody waits for more than two flights that bring a
// value.
//
// An error goes to everybody, since it carries no value that could be old. The exception is
// ErrDeserted, which is only for those who have left.
//
// # Fallbacks
//
// An old value that may be served if the load fails or takes too long (stale-if-error) is
// no matter of the flight: each caller has read it, or reads it, for itself. A caller's
// own read began after its Get did, so it needs no number. See [Patience].
//
// # The error hold
//
// The error of a load answers for its id for a while, the error hold, so that callers
// who waited do not retry one after another.
//
// # Nested callers
//
// A load may ask for other ids, and its own callers wait meanwhile. It must not wait for the
// load of a caller who waits for what the first one has. Where one load at a time may run:
//
//	reader A                              reader B
//	1 opens the flight of a, whose
//	  load takes the only place
//	                                      2 opens the flight of b, whose load
//	                                        waits for a place
//	3 the load of a asks for b: in B's
//	  flight it would wait for its own end
//
// So callers for whom [Group.Nested] reports true have flights of their own: the load of a
// opens another flight of b, whose load runs in the place of that of a. The next nested
// caller who wants b joins it. Two flights of an id may run at one time, and the lease
// lets one of them load.
//
// # Strict callers
//
// A caller who does not take what the others take, such as an old value, joins with strict. Strict
// callers have flights of their own, and held errors: nobody else waits for their loads. What a
// flight brings may still be no answer for one of its callers, who joins again then.
//
// # Re-entrance
//
// A load that asks for its own id would wait for itself. [Group.Loading] marks the
// contexts of loads, and Join returns [ErrReentrant] to such a caller.
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
	// ErrReentrant reports that the caller's context is that of a load of the same
	// id, see [Group.Loading].
	ErrReentrant = errors.New("flight: a load has read its own key")
)

// A Group holds the flights of one cache, whose results are of type R. It may be
// used concurrently.
type Group[R any] struct {
	// Nested recognizes the contexts of callers who have flights of their own. It may be
	// nil, and may not be changed after the first Join. It is called with the group's mutex
	// held.
	Nested func(context.Context) bool

	errorHold time.Duration

	mu      sync.Mutex // guards what follows, and the fields of flights that say so
	plain   side[R]
	strict  side[R]         // of strict callers
	alone   map[string]bool // ids of the flights of Alone that run
	running int             // flights without their Finish
	closed  bool
	idle    chan struct{} // closed when the group is closed and no flight runs
}

// A side has the flights that a kind of callers share, by id, and the errors that are held for them.
type side[R any] struct {
	flights  map[string]*Flight[R]
	nested   map[string]*Flight[R] // those of nested callers
	failures map[string]*failures
}

func newSide[R any]() side[R] {
	return side[R]{map[string]*Flight[R]{}, map[string]*Flight[R]{}, map[string]*failures{}}
}

// NewGroup makes a Group that holds an error for errorHold, give or take a fifth;
// negative: not at all.
func NewGroup[R any](errorHold time.Duration) *Group[R] {
	return &Group[R]{
		errorHold: errorHold, plain: newSide[R](), strict: newSide[R](),
		alone: map[string]bool{}, idle: make(chan struct{}),
	}
}

// A Flight is the shared effort for one id. The caller who opened it has it run: the
// runner calls Decide before each operation that may decide the result, and Finish
// once.
type Flight[R any] struct {
	ID    string
	group *Group[R]
	side  *side[R]
	among map[string]*Flight[R] // that others can join: the side's flights or nested; nil: made by Alone or Apart
	alone bool                  // made by Alone
	apart bool                  // made by Apart

	// Guarded by Group.mu. Nobody changes decidedAt after Finish.
	done       chan struct{} // closed by Finish; nil while nobody waits
	joined     int           // callers so far; each has its number, from 1
	decidedAt  int           // callers up to this number may take the result
	crowd      *crowd[R]     // nil: the flight does not wait for its turn
	desertedAt int           // callers up to this number have left, see Waiting
	left       []int         // numbers of the callers who have left
	deadline   time.Time     // the latest of the callers'
	patient    bool          // a caller has none
	fallback   bool          // a caller had one when it joined
	failed     bool          // see Failed
	retryAfter time.Duration

	// Written once by Finish before over is true, read only after that.
	over   atomic.Bool
	result R
	err    error
	next   *Flight[R] // of the callers beyond decidedAt
}

// A Caller is a place in a flight.
type Caller[R any] struct {
	Flight *Flight[R]
	number int
}

// Wait returns the result that the caller may take, and whether the caller is the
// first to have joined of those who may. It returns when the flight ends or ctx does,
// and earlier if p allows. The errors are those given to Finish and that of ctx.
func (c Caller[R]) Wait(ctx context.Context, p Patience[R]) (result R, first bool, err error) {
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
				if ctx.Err() != nil { // else it has its fallback, and the load goes on for those who come
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

// wait waits for the end of f. It reports ended if the caller leaves before that,
// with a fallback or with the error of ctx.
func (f *Flight[R]) wait(ctx context.Context, a alarms, p Patience[R]) (result R, ended bool, err error) {
	done := f.end()
	for {
		select {
		case <-done:
			return result, false, nil
		case <-ctx.Done():
			if f.over.Load() { // meanwhile, for example while the fallback was read
				return result, false, nil
			}
			if fallback, ok := p.fallback(); ok {
				return fallback, true, nil
			}
			return result, true, wait.Ended(ctx)
		case <-ring(a.lead):
			p.fallback() // as long as there is time to look for it
		case <-ring(a.soft):
			if fallback, ok := p.fallback(); ok {
				return fallback, true, nil
			}
			a.soft.Reset(p.SoftTimeout) // there may be one later
		}
	}
}

// end returns a channel that is closed when f ends.
func (f *Flight[R]) end() <-chan struct{} {
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

// Ready reports whether Wait returns at once, with the result of a flight that has ended.
func (c Caller[R]) Ready() bool { return c.Flight.over.Load() && c.number <= c.Flight.decidedAt }

// Decide lets everybody who has joined so far take the result of the runner's next
// operation, and returns the number of the last of them.
func (f *Flight[R]) Decide() int {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if !f.over.Load() {
		f.decidedAt = f.joined
	}
	return f.decidedAt
}

// TakeBack goes back to an earlier decision, whose number it takes. The runner calls
// it when the value that it loaded after that decision was not published: it then
// proves nothing to callers who joined later.
func (f *Flight[R]) TakeBack(number int) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if !f.over.Load() {
		f.decidedAt = number
	}
}

// Finish ends the flight:
//
//   - Without an error the callers up to the last Decide get result. If forAll reports
//     true, those who joined later get it too: Finish calls it with the group's mutex
//     held, so nobody joins between the question and the end. A nil forAll is false.
//   - An error goes to all, and is held.
//
// The remaining callers go on to the flight that Finish returns, which the runner has to
// run as well. It returns nil if there are none.
func (f *Flight[R]) Finish(result R, err error, forAll func() bool) (next *Flight[R]) {
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

// Refuse is Finish with the error of a load that was not begun, for lack of time or since
// nobody waits. It says nothing about the source, so it is held only for callers who have a
// fallback. ErrDeserted is not held: who has joined since goes on to the next flight.
func (f *Flight[R]) Refuse(err error) (next *Flight[R]) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if errors.Is(err, ErrDeserted) && !f.group.closed {
		f.decidedAt = f.desertedAt
	} else {
		f.holdError(err, true)
		f.decidedAt = f.joined
	}
	var none R
	return f.finish(none, err)
}

// finish ends the flight for the callers up to decidedAt, and opens the next one for the
// others. The caller holds Group.mu.
func (f *Flight[R]) finish(result R, err error) (next *Flight[R]) {
	g := f.group
	if f.alone {
		delete(g.alone, f.ID)
	}
	delete(f.among, f.ID)
	if f.joined > f.decidedAt {
		next = g.open(f.ID, f.side, f.among, anew[R]())
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

// Close ends joining. Runners still have to Finish their flights; the returned channel
// is closed when all have.
func (g *Group[R]) Close() (idle <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.closed = true
		g.running++ // and ended, so that Close closes idle itself if nothing runs
		g.ended()
	}
	return g.idle
}

// ended counts a flight that has finished. The caller holds g.mu.
func (g *Group[R]) ended() {
	if g.running--; g.running == 0 && g.closed {
		close(g.idle)
	}
}

// Joined returns how many callers have joined the flight of id that runs and is not one of
// nested callers, 0 if there is none.
func (g *Group[R]) Joined(id string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.plain.flights[id]; f != nil {
		return f.joined
	}
	return 0
}

// Peek reports whether a flight of id runs that others can join, and the error that
// answers for id to callers who are not strict, nil if none does. It changes nothing.
func (g *Group[R]) Peek(id string) (running bool, held error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range []*side[R]{&g.plain, &g.strict} {
		running = running || s.flights[id] != nil || s.nested[id] != nil
	}
	return running, g.plain.answer(id, true)
}
