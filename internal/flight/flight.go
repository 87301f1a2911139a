// Package flight lets the callers of one process who want the same id at one time
// share one effort: a singleflight whose result is safe to share while writers
// invalidate.
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
// joins, and the one who runs the flight calls [Flight.Decide] just before each
// operation that may decide the result: the read that finds a value, or the commit
// that publishes one. Decide notes the highest number so far. Callers up to it may
// take the result, since they asked before it was decided. B, with a higher number,
// may not: it goes on, together with everybody else who came late, to the next
// flight, which begins with a read of its own. Nobody waits for more than two
// flights that bring a value.
//
// An error goes to everybody: it carries no value that could be old.
//
// # Fallbacks
//
// A flight that loads may have found an old value first, one that answers only if
// the load fails or takes too long (stale-if-error). [Flight.SetFallback] keeps it
// for the callers who had joined before it was read. For later ones it is read
// again, see [LateForFallback].
//
// # The error hold
//
// An error answers for its id for a while (Group's errorHold), so that those who
// waited do not retry one after another.
package flight

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

var (
	// ErrClosed reports that the group has been closed.
	ErrClosed = errors.New("flight: closed")
	// ErrReentrant reports that the caller's context is that of a load of the same
	// id, see [Group.Loading]. The caller would wait for itself.
	ErrReentrant = errors.New("flight: a load asked for its own key")
)

// A Group holds the flights of one cache, whose results are of type R. It may be
// used concurrently.
type Group[R any] struct {
	errorHold time.Duration

	mu      sync.Mutex // guards what follows, and the fields of flights that say so
	flights map[string]*Flight[R]
	held    map[string]*heldError
	alone   map[string]bool // by id: flights of Alone that run
	running int             // flights without their Finish
	closed  bool
	idle    chan struct{} // closed when the group is closed and no flight runs
}

// A heldError is the error of a load that ended a short while ago.
type heldError struct {
	err error
	// look says that the load had a fallback, or was a refresh. Callers then look
	// into Redis before they take err: the old value may still answer, and if an
	// invalidation has ended it, they load.
	look bool
}

// NewGroup makes a Group that holds an error for errorHold, give or take a fifth;
// not at all if that is negative.
func NewGroup[R any](errorHold time.Duration) *Group[R] {
	return &Group[R]{
		errorHold: errorHold, flights: map[string]*Flight[R]{}, held: map[string]*heldError{},
		alone: map[string]bool{}, idle: make(chan struct{}),
	}
}

// A Flight is the shared effort for one id. Whoever opened it runs it: calls
// Decide before each operation that may decide the result, and Finish once.
type Flight[R any] struct {
	ID    string
	group *Group[R]
	alone bool
	done  chan struct{} // closed by Finish

	// Guarded by Group.mu.
	joined     int  // callers so far; each has its number, from 1
	decidedAt  int  // callers up to this number may take the result
	fallback   *R   // answers if the load does not
	fallbackAt int  // callers up to this number may take the fallback
	rereading  bool // somebody runs RereadFallback

	// Written once by Finish before done is closed, read only after that.
	result R
	err    error
	next   *Flight[R] // of the callers beyond decidedAt
}

// A Role says what a caller has to do for the flight that it has joined.
type Role int

const (
	Waits           Role = iota // somebody else runs the flight
	Opened                      // the caller has to see to it that the flight is run
	LateForFallback             // somebody else runs it; the caller has to start RereadFallback on another goroutine
)

// A Caller is a place in a flight.
type Caller[R any] struct {
	Flight *Flight[R]
	number int
}

// Join gives the caller a place in the flight of id, which it opens if there is
// none. It returns ErrClosed, ErrReentrant, or the held error of a load of id.
func (g *Group[R]) Join(ctx context.Context, id string) (Caller[R], Role, error) {
	if g.isLoading(ctx, id) {
		return Caller[R]{}, Waits, ErrReentrant
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return Caller[R]{}, Waits, ErrClosed
	}
	f, role := g.flights[id], Waits
	if f == nil {
		if h := g.held[id]; h != nil && !h.look {
			return Caller[R]{}, Waits, h.err
		}
		f, role = g.open(id), Opened
	}
	f.joined++
	if f.fallback != nil && !f.rereading {
		f.rereading, role = true, LateForFallback
	}
	return Caller[R]{f, f.joined}, role, nil
}

// open makes a flight that others can join. The caller holds g.mu.
func (g *Group[R]) open(id string) *Flight[R] {
	f := g.begin(id)
	g.flights[id] = f
	return f
}

// begin makes a flight. The caller holds g.mu.
func (g *Group[R]) begin(id string) *Flight[R] {
	g.running++
	return &Flight[R]{ID: id, group: g, done: make(chan struct{})}
}

// Alone makes a flight that nobody can join, for a refresh, which nobody waits for. It
// returns nil if such a flight of id runs, while an error of id is held, and after
// Close.
func (g *Group[R]) Alone(id string) *Flight[R] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.alone[id] || g.held[id] != nil {
		return nil
	}
	g.alone[id] = true
	f := g.begin(id)
	f.alone = true
	return f
}

// A Patience says when a caller stops to wait for a load and takes a fallback.
type Patience[R any] struct {
	// SoftTimeout is how long a caller waits who has a fallback. 0: until its context
	// ends.
	SoftTimeout time.Duration
	// Waited is how much of the first SoftTimeout has passed before the wait, since the
	// caller waits for several ids one after another.
	Waited time.Duration
	// Own is the caller's own fallback, where the flight has none. It may be nil.
	Own func() (R, bool)
}

// Wait returns the result that the caller may take, and whether the caller is the
// first of those who take it. It returns when the flight ends or ctx does, and earlier
// if p allows. The errors are those given to Finish and that of ctx.
func (c Caller[R]) Wait(ctx context.Context, p Patience[R]) (result R, first bool, err error) {
	f, number := c.Flight, c.number
	var soft *time.Timer // made by the first wait: most flights are over when their opener comes here
	for {
		select {
		case <-f.done:
		default:
			if soft == nil && p.SoftTimeout > 0 {
				soft = time.NewTimer(max(p.SoftTimeout-p.Waited, 0))
				defer soft.Stop()
			}
			if result, ended, err := f.wait(ctx, number, soft, p); ended {
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
// with the fallback or with the error of ctx.
func (f *Flight[R]) wait(ctx context.Context, number int, soft *time.Timer, p Patience[R]) (result R, ended bool, err error) {
	var softC <-chan time.Time
	if soft != nil {
		softC = soft.C
	}
	for {
		select {
		case <-f.done:
			return result, false, nil
		case <-ctx.Done():
			if fallback, ok := f.fallbackFor(number, p); ok {
				return fallback, true, nil
			}
			return result, true, wait.Ended(ctx)
		case <-softC:
			if fallback, ok := f.fallbackFor(number, p); ok {
				return fallback, true, nil
			}
			soft.Reset(p.SoftTimeout) // it may be read for this caller yet
		}
	}
}

// Decide makes everybody who has joined so far a taker of what the next operation
// brings, and returns the number of the last of them.
func (f *Flight[R]) Decide() int {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.decidedAt = f.joined
	return f.decidedAt
}

// DecidedAt takes the decision back to an earlier one: what was decided later was
// not published, so it says nothing to those who joined later.
func (f *Flight[R]) DecidedAt(number int) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.decidedAt = number
}

// SetFallback keeps fallback for the callers up to the last Decide.
func (f *Flight[R]) SetFallback(fallback R) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.fallback, f.fallbackAt = &fallback, f.decidedAt
}

// RereadFallback calls read until the fallback is one for everybody who has joined:
// what was read before a caller joined may be older than an invalidation that the
// caller knows of. It ends with the flight, and when read reports that there is
// nothing to fall back to any more.
func (f *Flight[R]) RereadFallback(read func() (R, bool)) {
	for {
		at, ok := f.fallbackMissing()
		if !ok {
			return
		}
		fallback, ok := read()
		f.group.mu.Lock()
		if ok {
			f.fallback, f.fallbackAt = &fallback, at
		} else {
			f.rereading = false
		}
		f.group.mu.Unlock()
		if !ok {
			return
		}
	}
}

// fallbackMissing returns the number of the last caller if the fallback was read
// before that caller joined.
func (f *Flight[R]) fallbackMissing() (joined int, missing bool) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	select {
	case <-f.done:
		return 0, false
	default:
	}
	if f.fallbackAt >= f.joined {
		f.rereading = false
		return 0, false
	}
	return f.joined, true
}

func (f *Flight[R]) fallbackFor(number int, p Patience[R]) (fallback R, ok bool) {
	f.group.mu.Lock()
	if f.fallback != nil && number <= f.fallbackAt {
		defer f.group.mu.Unlock()
		return *f.fallback, true
	}
	f.group.mu.Unlock()
	if p.Own != nil {
		return p.Own()
	}
	return fallback, false
}

// HeldError returns the error that a flight with a fallback takes as that of its
// load, nil if it should load.
func (f *Flight[R]) HeldError() error {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if h := f.group.held[f.ID]; h != nil && f.fallback != nil {
		return h.err
	}
	return nil
}

// Finish ends the flight with result for the callers up to the last Decide, or with
// err for all. Where there is a fallback it stands in for err. If forAll reports
// true, those who joined later get the result too; it is asked with the group's mutex
// held, so that nobody joins between the question and the end. It may be nil.
//
// If callers remain, they are in the flight that Finish returns, which the caller of
// Finish has to run.
func (f *Flight[R]) Finish(result R, err error, forAll func() bool) (next *Flight[R]) {
	g := f.group
	g.mu.Lock()
	if err != nil && !g.closed {
		g.holdError(f.ID, err, f.fallback != nil || f.alone)
	}
	switch {
	case err == nil:
		if f.joined > f.decidedAt && forAll != nil && forAll() {
			f.decidedAt = f.joined
		}
	case f.fallback != nil && !g.closed:
		result, err, f.decidedAt = *f.fallback, nil, f.fallbackAt
	default:
		f.decidedAt = f.joined
	}
	if f.alone {
		delete(g.alone, f.ID)
	} else {
		delete(g.flights, f.ID)
	}
	if f.joined > f.decidedAt {
		next = g.open(f.ID)
		next.joined = f.joined - f.decidedAt
	}
	f.result, f.err, f.next = result, err, next
	g.end()
	g.mu.Unlock()
	close(f.done)
	return next
}

// holdError holds err for a while, unless one is held. The caller holds g.mu.
func (g *Group[R]) holdError(id string, err error, look bool) {
	if g.errorHold < 0 || g.held[id] != nil {
		return
	}
	h := &heldError{err, look}
	g.held[id] = h
	time.AfterFunc(wait.Jitter(g.errorHold, 0.2), func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.held[id] == h {
			delete(g.held, id)
		}
	})
}

// Forget drops the held error of id, since a writer of this process has changed id.
func (g *Group[R]) Forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.held, id)
}

// Close ends joining. Whoever runs a flight still has to Finish it; the returned
// channel is closed when all have.
func (g *Group[R]) Close() (idle <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.closed = true
		g.running++
		g.end()
	}
	return g.idle
}

// end counts a flight that has finished. The caller holds g.mu.
func (g *Group[R]) end() {
	if g.running--; g.running == 0 && g.closed {
		close(g.idle)
	}
}

// Joined returns how many callers have joined the flight of id that is under way,
// 0 if there is none.
func (g *Group[R]) Joined(id string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.flights[id]; f != nil {
		return f.joined
	}
	return 0
}

// Loading marks ctx as that of a load of ids, so that Join with it or a context made
// of it returns ErrReentrant for them.
func (g *Group[R]) Loading(ctx context.Context, ids ...string) context.Context {
	return context.WithValue(ctx, loadingKey{}, &loading{group: g, ids: ids, outer: loadingOf(ctx)})
}

// IsLoading reports whether ctx is that of a load of this group.
func (g *Group[R]) IsLoading(ctx context.Context) bool {
	return loadingOf(ctx).find(func(l *loading) bool { return l.group == g })
}

func (g *Group[R]) isLoading(ctx context.Context, id string) bool {
	return loadingOf(ctx).find(func(l *loading) bool { return l.group == g && slices.Contains(l.ids, id) })
}

// Detached returns ctx without its end, and not as that of a load: what is done
// under it is waited for by no load.
func Detached(ctx context.Context) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), loadingKey{}, (*loading)(nil))
}

type loadingKey struct{}

// A loading is one load that a context belongs to, and those around it, if a load
// asked for another key.
type loading struct {
	group any
	ids   []string
	outer *loading
}

func loadingOf(ctx context.Context) *loading {
	l, _ := ctx.Value(loadingKey{}).(*loading)
	return l
}

func (l *loading) find(is func(*loading) bool) bool {
	for ; l != nil; l = l.outer {
		if is(l) {
			return true
		}
	}
	return false
}
