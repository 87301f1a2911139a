// Package breaker protects a source that may fail, hang or be
// overloaded, such as a database. It bounds how many calls run at a time and how long
// each may take, queues bursts of calls, refuses calls that it cannot serve in
// time, and stops calling for a while when too many calls fail.
//
// A call of [Breaker.Do] goes through these steps:
//
//	open?   refused at once with ErrOpen
//	queue   waits for a place, first in first out, if its turn can be expected in
//	        time: else ErrLimited at once
//	open?   checked again, because it may have opened while the call waited; the
//	        opening also ends the waiting
//	run     in a goroutine of its own, at most Timeout: ErrTimeout
//	verdict success, failure, or neither
//
// The breaker is closed, open or half-open. Closed, it opens when at least
// [Options.MinRequests] calls of the last [Options.Window] have come to a verdict
// and [Options.FailureRatio] of them are failures. Open, it refuses everything for
// about [Options.Cooldown]. Then it is half-open and lets one call at a time try:
// the first success closes it, a failure opens it again. Meanwhile it refuses all
// other calls, except nested calls of the function that tries. Only a closed breaker
// has a queue: otherwise a call that finds no place is refused at once.
//
// # The queue
//
// A call that finds no place waits if it can be expected to end before its caller's
// deadline or, without a deadline, to get a place within QueueTimeout. The breaker
// estimates both, by Little's law, from how many calls run and wait and how long the last
// functions took. So by the defaults a burst of
//
//	MaxConcurrent × QueueTimeout / the time of a function = 64 × 5 s / 50 ms = 6,400 calls
//
// can be served, less a tenth for the error of the estimate. Under lasting overload the
// breaker serves the calls that it can serve in time, and refuses the others at once. A
// waiting call waits until its turn, its deadline or QueueTimeout, even if functions become
// slower meanwhile. No call is refused on an average of fewer than 64 functions.
//
// # The limit
//
// How many functions a source can take at a time is hard to know, and changes. With
// [Options.MinConcurrent] the breaker finds the number: now and then, for five to nine times
// as long as a function takes, it lets half as many run. If they are faster then, too many
// ran before, and the limit falls by as much; otherwise the limit rises. The limit of a source
// that is slow for other reasons stays. All processes make these trials at the same moments,
// by their clocks, so that processes that share a source find its limit together, in about
// equal shares, without communicating.
//
// The limit starts at a quarter of MaxConcurrent, but at least at 8, and within its bounds. It
// moves only while calls wait for a place. A trial comes once in 50 to 100 times as long as a
// function takes (half of that for functions over 100 ms), and once a second at most: for a
// source whose functions take a second, finding the limit takes minutes. A function that fails
// or is cancelled does not count if it is quicker than the average; a slower one was cut off,
// and counts as one that hangs. A function that makes a batch of queries is one function, and
// weighs by the logarithm of its time. Processes need clocks that agree to 15 ms, and some
// three places each: with more processes the source needs a pooler. Stats.Limit is the present limit.
//
// # Nested calls
//
// A function may make calls of its own Breaker, with the context that it got: these take no
// place of their own but run in the function's place. So functions that need each other do
// not wait for each other in vain, and the calls that functions make in parallel exceed
// MaxConcurrent. A function of one Breaker that calls another Breaker is a caller like any
// other there. If functions of two Breakers hold all places of each and call the other
// Breaker, none goes on until QueueTimeout or Timeout ends some of them: let calls go one way.
//
// Guarantees:
//
//   - At most [Options.MaxConcurrent] functions run, nested calls not counted, even if
//     their callers have left: a function that ignores the end of its context keeps its
//     place until it returns. If such functions hold all places, no function runs until
//     one of them returns.
//   - A call returns when its context ends, and at the latest after [Options.QueueTimeout]
//     and Timeout together if it has no deadline, whatever the function does.
//   - A function that panics or calls runtime.Goexit ends its call with an error
//     and is a failure. A function that hangs is a failure after Timeout. None of
//     them leaves the breaker half-open.
//   - A caller that leaves, by cancellation or by its own deadline, counts neither
//     as a success nor as a failure. So if Timeout is longer than all callers are
//     willing to wait, the breaker never sees a failure: keep it shorter, or detach
//     the calls.
//   - The verdict on a call that began before the last change of state has no effect
//     on the state.
//
// The breaker does not retry, and it does not know about other processes.
package breaker

import (
	"context"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/guard"
)

var (
	// ErrOpen reports that the function was not called, because too many earlier
	// calls have failed.
	ErrOpen = guard.ErrOpen
	// ErrLimited reports that the function was not called, because too many are
	// running or waiting. Its text names the limit. If the caller's context ended
	// while it waited, the error matches the context's error too.
	ErrLimited = guard.ErrLimited
	// ErrTimeout reports that the function did not return within Timeout.
	ErrTimeout = guard.ErrTimeout
)

// A PanicError reports that the function panicked or called runtime.Goexit, and where.
type PanicError = contain.PanicError

// A State says what a Breaker does with calls. Its String is "closed", "half-open" or "open".
type State = guard.State

// The states of a Breaker.
const (
	Closed   State = guard.Closed   // lets calls through
	HalfOpen State = guard.HalfOpen // lets one call at a time try
	Open     State = guard.Open     // refuses calls
)

// A Breaker protects one source. All callers of that source should share one Breaker, because it
// counts and bounds the load of the source. It may be used concurrently and need not be closed. A
// nil *Breaker does not bound its calls, but still contains their panics and returns when their
// context ends.
type Breaker guard.Breaker

func (b *Breaker) guard() *guard.Breaker { return (*guard.Breaker)(b) }

// New makes a Breaker. Its error names the option that is wrong.
func New(o Options) (*Breaker, error) {
	b, err := guard.New(guard.Options(o))
	return (*Breaker)(b), err
}

// Do calls fn and returns its error. It does not call fn if the breaker is open (ErrOpen) or if
// no place can be expected to come free in time (ErrLimited). fn runs in a goroutine of its own.
// Its context has the values of ctx and ends with ctx; if there is a Timeout, it also ends after
// that and when Do returns.
//
// Do returns when fn does. The error is a *PanicError if fn panicked or called runtime.Goexit. If
// fn's context ends first, Do returns at once, with ErrTimeout or with the error of ctx, joined
// with its cause if it has one. If fn returns an error after its context has ended, Do returns
// these errors instead, unless ctx has ended and IsFailure returns false for fn's error.
func (b *Breaker) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return b.guard().Do(ctx, fn)
}

// Name returns [Options.Name].
func (b *Breaker) Name() string { return b.guard().Name() }

// State returns the present state. It does not block.
func (b *Breaker) State() State { return b.guard().State() }

// Stats returns a snapshot. It does not block.
func (b *Breaker) Stats() Stats { return Stats(b.guard().Stats()) }
