// Package rebuild takes a key from "no process has its value" to an answer, across all processes
// of a fleet. It works on ids and bytes. It asks its [Owner] what a key, its bytes and an answer mean.
//
// # One key
//
// A [Run] is one key on its way through a flight. [Engine.answer] is the whole way:
//
//	look     read Redis, unless the caller who opened the flight has
//	turn     take a place at the breaker, then the lease, load, and publish under the lease
//
// Each turn ends with a verdict:
//
//	found        Redis has a value by now: the Owner says whether it is an answer
//	busy         another process loads the key: wait for that, and look again
//	unknown      Redis does not answer: load without a lease, and publish nothing (unleased)
//	held         a writer holds the key: it was loaded beside the writer; ask again, and answer if
//	             the key is still held
//	published    it was loaded and published: that is the answer, after a Clear only of callers who
//	             joined before the load
//	unpublished  it was loaded, and Redis may not have it: it answers only callers who joined before
//	             the load
//	overtaken    an invalidation has taken the lease away meanwhile: take another turn
//	settled      the turn has ended the run: the breaker gave no place, say, or the load failed
//
// A Refresh or a Warm ends where a Read would wait, load beside a writer, load again, or load without a
// lease.
//
// # Many keys
//
// Keys that come together take their turn together: one place, one round trip for the leases, one
// load, one round trip for the publication. Those that take another turn at once stay together.
// Every other step is one key's, on a goroutine of its own; the lanes of package redisconn put what
// many goroutines ask of Redis at one moment into one trip.
//
// # The place comes before the lease
//
// Otherwise the first process to ask in a cold start would get the leases of all keys, and have
// them wait for its places while those of other processes are free:
//
//	process A, 64 places             process B, 64 places
//	wants 500 keys                   wants the same 500
//	places and leases for 1 to 64
//	                                 places for 1 to 64: busy, places given back
//	                                 places and leases for 65 to 128
//	loads 1 to 64                    loads 65 to 128
package rebuild

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/guard"
	"github.com/levee-go/levee/internal/wait"
)

var (
	// ErrElsewhere ends a run of Refresh or Warm that another process, or a writer, makes needless.
	ErrElsewhere = errors.New("rebuild: loaded elsewhere")
	// ErrNoRedis ends a run that needs Redis, which does not answer.
	ErrNoRedis = fmt.Errorf("%w: redis does not reply", fleet.ErrUnavailable)
)

// maxOvertaken is how often a load that an invalidation overtook is run again. A key that is
// overtaken more often is written faster than it can be loaded; its callers get the value that was
// loaded last, which is right for them: they asked before that load. A Replace drops the old value
// instead.
const maxOvertaken = 2

// A Config says for whom an Engine works, and with what.
type Config struct {
	Owner   Owner
	Fleet   *fleet.Group
	Flights *flight.Group
	Breaker *guard.Breaker  // nil: there is a place for everybody
	Closing context.Context // ends with the owner

	Read func(ctx context.Context, id string) fleet.Value // reads Redis

	LoadTimeout     time.Duration // for a load and its wait for a place; 0: none
	Closed, TooLate error         // the errors of a load when Closing or LoadTimeout has ended it
	Batch           int           // how many keys one load takes; 1: loads of single keys only
	Singles         bool          // a key by itself is loaded by itself, and not gathered with others

	// Rebuilding is called when the first turn of a run begins, unless it is a Warm or a Replace; the
	// function that it returns is called when the run ends. Waiting is called when a run begins to wait for another process, and
	// over at the end of that. Nil: no function is called.
	Rebuilding func(ctx context.Context, r *Run) (inner context.Context, rebuilt func(any, error))
	Waiting    func(ctx context.Context, r *Run) (over func())
}

// An Engine rebuilds the keys of its Owner. Make it with [New].
type Engine struct {
	Config
	gatherers [Warm]gatherer // of the purposes before Warm, by purpose
}

// New returns an Engine. Its runs end when their keys have an answer; the Engine has nothing to close.
func New(c Config) *Engine {
	e := &Engine{Config: c}
	for i := range e.gatherers {
		e.gatherers[i].together, e.gatherers[i].most = e.together, c.Batch
	}
	return e
}

// answer takes a run to its end.
func (e *Engine) answer(r *Run) (answer any, err error) {
	if r.Look {
		if answer, ok := e.look(r); ok {
			return answer, nil
		}
	}
	var beside *besideLoad
	for {
		was := beside
		beside = nil
		switch {
		case was != nil:
			e.ask([]*Run{r})
		case r.verdict == none:
			e.turn(r)
		}
		verdict := r.verdict
		r.verdict = none
		if err := yielded[verdict]; err != nil && purposes[r.Purpose].yields {
			return nil, err
		}
		switch verdict {
		case settled:
			return r.Loaded.Answer, r.Loaded.Err
		case published:
			if !e.Owner.Keep(r, Until{}) { // a Clear has overtaken the load
				r.flight.TakeBack(r.joined)
			}
			return r.Loaded.Answer, nil
		case unpublished:
			return e.unpublished(r), nil
		case unleased:
			e.Owner.Keep(r, Until{Unconfirmed: true})
			return r.Loaded.Answer, nil
		case overtaken:
			if !r.mayLoadAgain() {
				return e.unpublished(r), nil
			}
			r.loadAgain()
		case found:
			value := r.value
			r.value = fleet.Value{}
			if answer, ok := e.Owner.Accept(r, value); ok {
				if r.Purpose == Warm {
					err = ErrElsewhere
				}
				return answer, err
			}
			r.Seen = value.Data
		case busy:
			if !e.wait(r) {
				r.Purpose = Degraded
			} else if answer, ok := e.look(r); ok {
				return answer, nil
			}
		case unknown:
			r.Purpose = Degraded
		case held:
			if was != nil {
				return e.besideWriter(r, was), nil
			}
			beside = &besideLoad{r.joined, r.Mark, r.ends}
		case granted: // it asked without a place: it gives the lease back and takes a turn
			e.Fleet.Abort(r.ctx, r.lease)
		}
	}
}

// unpublished ends a run with a value that it has loaded and that Redis may not have. The value says
// nothing to callers who joined after the load began.
func (e *Engine) unpublished(r *Run) any {
	r.flight.TakeBack(r.joined)
	e.Owner.Keep(r, Until{})
	return r.Loaded.Answer
}

// look reads Redis. If that brings no answer, it notes in r what Redis holds, or that it gave no
// reply: whether there is a value is then unknown, and that is not a miss.
func (e *Engine) look(r *Run) (answer any, ok bool) {
	e.decide(r)
	if answer, ok := e.Owner.Meanwhile(r); ok {
		r.Kept = true
		return answer, true
	}
	r.Look = false
	value := e.read(r)
	if value.Err != nil {
		r.Purpose = Degraded
		return answer, false
	}
	if answer, ok := e.Owner.Accept(r, value); ok {
		return answer, true
	}
	r.Seen = value.Data
	return answer, false
}

// read reads Redis for a run. The first read of a flight takes half of the time of the caller who
// opened it, since the other half is for the source. If that caller has left meanwhile, a read
// without a reply says nothing about Redis, and read repeats it.
func (e *Engine) read(r *Run) fleet.Value {
	if caller := r.caller; caller != nil {
		ctx, stop := wait.Half(caller, r.ctx, e.Fleet.RedisTimeout())
		value := e.Read(ctx, r.ID)
		stop()
		r.halve(e.Fleet.RedisTimeout())
		if value.Err == nil || caller.Err() == nil {
			return value
		}
	}
	return e.Read(r.ctx, r.ID)
}

// decide comes before each operation that may decide the result of r.
func (e *Engine) decide(r *Run) {
	r.joined = r.flight.Decide()
	r.Mark = e.Owner.Mark(r.ID)
}

// wait waits until the lease that another process has of r's key may have ended. It returns false
// if that process has had it for too long, and when the owner closes.
func (e *Engine) wait(r *Run) bool {
	if r.over == nil && e.Waiting != nil {
		r.over = e.Waiting(r.ctx, r)
	}
	return r.waiter.Wait(e.Closing, r.remaining)
}

// Beside a writer
//
// While a writer holds the keys, or while the replicas of the source may lag, keys are loaded and
// not published. The owner keeps what was loaded for a second at most, so each process loads a key
// that many read about once a second, and not for each flight. The end of the hold drops it, by the
// message of the invalidation. The hold of ReplicaLag ends without a message, so nothing that was
// loaded under a hold is kept beyond the time at which that hold ends by itself, not even for errors.
//
// Such a load answers only if no later reader can find the old value in Redis. So the run asks
// again: if the verdict is held once more, no value is in Redis now and no lease stands, so a value
// that is published later is also loaded later. Then the load answers those who had joined before
// it, and the readers whom the owner answers from what it has kept.

// A besideLoad is what a run has to know of its load beside a writer.
type besideLoad struct {
	joined int       // callers up to this number had joined before it
	mark   Mark      // from before the verdict
	ends   time.Time // of the first hold
}

// besideWriter ends a run that has loaded beside a writer, who still holds its key.
func (e *Engine) besideWriter(r *Run, load *besideLoad) any {
	r.flight.TakeBack(load.joined)
	r.Mark = load.mark
	e.Owner.Keep(r, Until{Unconfirmed: true, Ends: load.ends})
	return r.Loaded.Answer
}

// finish ends a run with an answer or an error.
func (e *Engine) finish(r *Run, answer any, err error) {
	r.Loaded.Err = err
	failpoint.At("finish")
	if r.Ended != nil {
		defer r.Ended(err)
	}
	defer e.land(r, answer, err) // also if what follows does not return: hooks are the user's, and may call Goexit
	r.waiter.Close()
	r.endWait()
	if r.rebuilt != nil {
		r.rebuilt(answer, err)
	}
}

// land ends the flight of a run, and runs the next flight of those for whom the answer came too early.
func (e *Engine) land(r *Run, answer any, err error) {
	var next *flight.Flight
	if r.Loaded.Failed {
		r.flight.Failed(r.Loaded.Rest)
	}
	if err != nil && r.refused {
		next = r.flight.Refuse(err)
	} else {
		next = r.flight.Finish(answer, err, func() bool { return r.Kept && e.Owner.Current(r, answer) })
	}
	if next != nil {
		// It must not refer to r, or a chain of flights would keep all their results.
		later := &Run{Subject: r.Subject, ID: r.ID, Look: true, ctx: r.ctx, detached: r.detached, flight: next}
		go e.run(later)
	} else if r.detached {
		e.Breaker.Unkeep(r.ctx)
	}
}

// run takes a run to its end, and ends its flight whatever happens on the way.
func (e *Engine) run(r *Run) {
	var answer any
	contain.Call(func() (err error) {
		answer, err = e.answer(r)
		return err
	}, func(err error) { e.finish(r, answer, err) })
}
