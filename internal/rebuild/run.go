package rebuild

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/guard"
	"github.com/levee-go/levee/internal/wait"
)

// A Purpose is why a key is rebuilt.
type Purpose uint8

const (
	Read     Purpose = iota // callers wait for it
	Degraded                // callers wait for it, and Redis does not answer
	Refresh                 // no caller waits: the old value still answers
	Warm                    // its caller waits, and no other joins: the key is not read yet
	Replace                 // its caller waits, and no other joins: the old value has to go
)

// purposes says of each Purpose what it may do.
var purposes = [...]struct {
	class  guard.Class // of its place
	yields bool        // it ends, as yielded says, where a Read would wait, load beside a writer, load again, or load without a lease
}{
	Read:     {class: guard.Normal},
	Degraded: {class: guard.Degraded}, // without a lease every process may be loading the key
	Refresh:  {class: guard.Background, yields: true},
	Warm:     {class: guard.Background, yields: true},
	Replace:  {class: guard.Normal},
}

// A verdict is how a turn of a run has ended, see the package's documentation.
type verdict uint8

const (
	none    verdict = iota // no turn is taken, or its verdict was looked at
	granted                // only while the turn lasts, and for a run that asks without a place
	unknown
	found
	busy
	held
	published
	unpublished
	overtaken
	unleased
	settled // Loaded is the end of the run
)

// yielded has the errors with which verdicts end a run that yields.
var yielded = [...]error{unknown: ErrNoRedis, busy: ErrElsewhere, held: ErrElsewhere, overtaken: ErrElsewhere, settled: nil}

// A Mark is a moment in what an Owner keeps of an id. It is opaque to the Engine.
type Mark uint64

// A Loaded is what the load of a run has brought.
type Loaded struct {
	Answer any // with an Err it may be nil
	Err    error
	Failed bool          // Err is an error of the source
	Rest   time.Duration // the pause that the source has asked for with Err; 0: none
	Size   int           // of Answer, encoded; 0: not known
}

// A Run is one key on its way through a flight. It belongs to one goroutine at a time.
type Run struct {
	Subject any // what the owner knows of the key
	ID      string
	Purpose Purpose // a Read becomes Degraded when Redis does not answer, or another process has had the lease for too long

	// Set by the owner before Start.
	Seen      []byte      // what Redis holds, if that is no answer
	Look      bool        // the caller who opened the flight has not read Redis
	Impatient bool        // a degraded load does not wait for a place: its callers, all of this process, have a value to fall back to
	Ended     func(error) // called when the run has ended, if no caller joins its flight; nil: no function is called

	// Set by the Engine, for the owner.
	Mark   Mark // from before the operation that decides the result
	Stands bool // the lease was granted while Seen stood in Redis

	// Set by the owner, in Load, Accept and Keep.
	Loaded Loaded
	Kept   bool // the result is in the memory of the process

	ctx      context.Context // does not end with any caller
	detached bool            // ctx is the run's own, see detach
	caller   context.Context // of the caller who opened the flight; nil once half is set
	half     time.Time       // until when the first lease may be asked for, see halve; zero: as long as it takes
	flight   *flight.Flight
	own      flight.Flight // what flight points to, if a caller opened it: it saves an allocation

	paged   bool          // it came together with others
	taken   chan struct{} // closed when the turn that its goroutine waits for is taken; nil: it has no goroutine
	refused bool          // no place was free
	verdict verdict
	value   fleet.Value // found
	lease   fleet.Lease // granted

	waiter    *fleet.Waiter
	remaining time.Duration // busy: of the other process's lease
	ends      time.Time     // held: of the first hold
	over      func()        // ends the wait for another process; nil: it does not wait
	rebuilt   func(any, error)

	joined    int // callers up to this number had joined at the last decide, or when the last load began
	overtaken int // how often an invalidation has overtaken a load
}

// Class returns the class of the run's place.
func (r *Run) Class() guard.Class { return purposes[r.Purpose].class }

// Held reports, in Owner.Load, whether a writer holds the key.
func (r *Run) Held() bool { return r.verdict == held }

// Context returns a context with the values of the caller who opened the flight. It ends with no caller.
func (r *Run) Context() context.Context { return r.ctx }

// Join adds a caller to the flight of id. If none runs, Join opens one and returns its run, which the
// caller has to Start: spare or, if that is nil, a new one. Who joins a running flight needs none. The
// errors are those of flight.Group.Join.
func (e *Engine) Join(ctx context.Context, id string, as flight.Callers, spare *Run) (c flight.Caller, opened *Run, err error) {
	c, opens, err := e.Flights.Join(ctx, id, as, func() *flight.Flight {
		if spare == nil {
			spare = &Run{}
		}
		return &spare.own
	})
	if opens {
		opened = spare
	}
	return c, opened, err
}

// NewRun returns a run whose flight no caller joins. A Replace is freed from the end of ctx; for the
// others ctx must have no end.
func (e *Engine) NewRun(ctx context.Context, f *flight.Flight, subject any, purpose Purpose) *Run {
	r := &Run{Subject: subject, ID: f.ID, ctx: ctx, flight: f, Purpose: purpose}
	if purpose == Replace {
		r.caller = ctx
		e.detach(r)
		r.caller = nil
	}
	return r
}

// detach frees a run from the end of the context of the caller who opened its flight, and from the
// end of the load that this caller may be: the run's load stays a nested one.
//
//	page X                        page Y                      pages Z, W, ...
//	opens the flight of a row
//	                              joins it, too late
//	the row is loaded, X ends
//	                                                          take all places but Y's
//	                              the next flight of the row,
//	                              with the context of X,
//	                              would wait for a place
func (e *Engine) detach(r *Run) {
	ctx := r.caller
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	r.ctx, r.detached = e.Breaker.Keep(ctx), true
}

// halve notes until when Redis may be asked for the first lease: the source has the other half of
// the time of the caller who opened the flight.
func (r *Run) halve(redisTimeout time.Duration) {
	if r.caller != nil {
		if until, ok := wait.Halfway(r.caller, redisTimeout); ok {
			r.half = until
		}
		r.caller = nil
	}
}

func (r *Run) endWait() {
	if over := r.over; over != nil {
		r.over = nil
		over()
	}
}

// mayLoadAgain reports whether a run that was overtaken takes another turn.
func (r *Run) mayLoadAgain() bool { return r.overtaken < maxOvertaken }

func (r *Run) loadAgain() {
	r.flight.TakeBack(r.joined)
	r.overtaken++
}

// Start runs the flights that a caller with ctx has opened, which are the runs' own. A run is Degraded if
// Redis gave that caller no reply.
func (e *Engine) Start(ctx context.Context, runs ...*Run) {
	var ended, missing, unread []*Run
	for _, r := range runs {
		r.flight, r.ID, r.caller, r.paged = &r.own, r.own.ID, ctx, len(runs) > 1
		e.detach(r)
		switch {
		case r.Look:
			go e.run(r)
			continue
		case r.Purpose == Degraded && ctx.Err() != nil: // a caller who has left says nothing about Redis
			r.caller, r.Purpose, r.Look = nil, Read, true
			go e.run(r)
			continue
		case e.answeredMeanwhile(r):
			ended = append(ended, r)
		case r.Purpose == Degraded:
			unread = append(unread, r)
		default:
			missing = append(missing, r)
		}
		r.halve(e.Fleet.RedisTimeout())
	}
	for _, some := range [][]*Run{missing, unread} {
		if len(some) > 0 {
			go e.inParts(some) // beside the caller, who waits
		}
	}
	e.endAll(ended)
}

// answeredMeanwhile reports whether this process has an answer by now, and settles the run with it.
// The run's flight may have been opened by a caller who missed the local tier and Redis before an
// earlier flight had filled them, and joined after that had ended. Without this look the key would be
// loaded twice if it is not in Redis: a null that is missed for the first time, or any key while
// there is no Redis to ask.
func (e *Engine) answeredMeanwhile(r *Run) bool {
	e.decide(r)
	answer, ok := e.Owner.Meanwhile(r)
	if ok {
		r.verdict, r.Kept, r.Loaded = settled, true, Loaded{Answer: answer}
	}
	return ok
}

// Go takes runs that no caller waits for, and that one load takes, to their ends.
func (e *Engine) Go(runs []*Run) { go e.hand(runs) }

// Do takes runs to their ends and waits for that. No caller may join their flights. It sets their Ended.
func (e *Engine) Do(runs []*Run) {
	var running sync.WaitGroup
	running.Add(len(runs))
	for _, r := range runs {
		r.Ended = func(error) { running.Done() }
	}
	go e.inParts(runs)
	running.Wait()
}

const (
	maxSingles = 64 // runs of single keys that came together and are loaded at a time
	maxBatches = 4  // and batches of such runs
)

// inParts hands runs over in parts, several at a time: as many as one load takes.
func (e *Engine) inParts(runs []*Run) {
	switch {
	case len(runs) == 0:
		return
	case len(runs) <= e.Batch:
		e.hand(runs)
		return
	}
	var parts errgroup.Group
	if parts.SetLimit(maxBatches); e.Batch == 1 {
		parts.SetLimit(maxSingles)
	}
	for part := range slices.Chunk(runs, e.Batch) {
		parts.Go(func() error {
			e.hand(part)
			return nil
		})
	}
	_ = parts.Wait() // errors are those of runs
}

// hand gives runs their turn, with others if they share a load.
func (e *Engine) hand(runs []*Run) {
	if e.shares(runs) {
		e.gatherers[runs[0].Purpose].add(runs)
		return
	}
	e.together(runs, func() {})
}

// turn takes a turn of a run that has a goroutine of its own.
func (e *Engine) turn(r *Run) {
	runs := []*Run{r}
	if !e.shares(runs) {
		e.take(runs, func() {})
		return
	}
	r.taken = make(chan struct{})
	e.gatherers[r.Purpose].add(runs)
	<-r.taken
	r.taken = nil
}

// together takes a turn of runs, each of which then goes on by itself.
func (e *Engine) together(runs []*Run, placed func()) {
	contain.Call(func() error { e.take(runs, placed); return nil }, func(err error) {
		if err != nil { // a hook of the user's client, or a codec, has panicked or called Goexit
			settle(slices.DeleteFunc(slices.Clone(runs), (*Run).decided), err)
		}
		e.goOn(runs)
	})
}

// decided reports whether the verdict of a run stands, whatever happens to the rest of the turn.
func (r *Run) decided() bool {
	return r.verdict == found || r.verdict == busy || r.verdict == unknown || r.verdict == settled
}

// goOn has runs that have taken a turn go on. A run whose goroutine waits in turn goes on there; those
// that have ended end here; those that take another turn at once take it together; each other one gets a
// goroutine of its own.
func (e *Engine) goOn(runs []*Run) {
	var ending, again, unread []*Run
	for _, r := range runs {
		switch {
		case r.taken != nil:
			close(r.taken) // from here on r belongs to its goroutine
		case r.verdict == settled, r.verdict == published, r.verdict == unpublished, r.verdict == unleased, purposes[r.Purpose].yields && yielded[r.verdict] != nil:
			ending = append(ending, r)
		case r.verdict == unknown:
			r.Purpose = Degraded
			unread = append(unread, r)
		case r.verdict == overtaken && r.mayLoadAgain():
			r.loadAgain()
			again = append(again, r)
		default:
			go e.run(r)
		}
	}
	for _, some := range [][]*Run{again, unread} {
		if len(some) > 0 {
			go e.together(some, func() {})
		}
	}
	e.endAll(ending)
}

// endAll ends runs on this goroutine. If a hook of one calls Goexit, the others still end.
func (e *Engine) endAll(runs []*Run) {
	defer func() {
		if len(runs) > 0 {
			e.endAll(runs)
		}
	}()
	for len(runs) > 0 {
		r := runs[0]
		runs = runs[1:]
		e.run(r)
	}
}
