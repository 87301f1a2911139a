// Package breaker stands in front of a source that may fail, hang or drown, such
// as a database. It bounds how many calls run at a time, how long each may take
// and how long one waits for its turn, and it stops calling for a while when too
// many of them fail.
//
// A call of [Breaker.Do] passes, in this order:
//
//	open?   refused at once with ErrOpen
//	queue   waits its turn, first in first out, at most QueueTimeout: ErrLimited
//	open?   asked again: it may have opened meanwhile (this ends the waiting too)
//	run     in a goroutine of its own, at most Timeout: ErrTimeout
//	verdict success, failure, or neither
//
// The breaker is closed, open or half-open. Closed, it opens when at least
// [Options.MinRequests] calls of the last [Options.Window] have come to a verdict and
// [Options.FailureRatio] of them are failures. Open, it refuses everything for about
// [Options.Cooldown]. Then it is
// half-open and lets one call at a time try: the first success closes it, a
// failure opens it again.
//
// What it keeps to:
//
//   - At most [Options.MaxConcurrent] functions run, whatever becomes of their
//     callers: one that ignores the end of its context keeps its place until it
//     returns. If all places are taken like that, nothing runs until one of them
//     returns.
//   - A call returns when its context ends and at the latest after
//     [Breaker.MaxDuration], whatever the function does.
//   - A panic or a Goexit of the function ends that call with an error and is a
//     failure. A hang is one after Timeout. None of them leaves it half-open.
//   - A caller that leaves, by cancellation or by its own deadline, counts neither
//     as a success nor as a failure. So a Timeout longer than all callers are
//     willing to wait never sees a failure: keep it below, or detach the calls.
//
// [Breaker.DoDegraded] and [Breaker.DoBackground] are the same within smaller limits.
//
// It does not retry, and it does not know what other processes see.
package breaker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/contain"
)

var (
	// ErrOpen reports that the function was not called, because too many calls
	// before it have failed.
	ErrOpen = errors.New("breaker: open")
	// ErrLimited reports that the function was not called, because too many are
	// running or waiting. If the caller's context ended while it waited, the
	// error matches the context's error too.
	ErrLimited = errors.New("breaker: too many calls")
	// ErrTimeout reports that the function did not return within Timeout.
	ErrTimeout = errors.New("breaker: call timed out")
	// ErrGoexit reports that the function called runtime.Goexit.
	ErrGoexit = contain.ErrGoexit
)

// PanicError reports that the function panicked, and where.
type PanicError = contain.PanicError

// State is what a Breaker does with calls.
type State int

// The order is gobreaker's.
const (
	Closed   State = iota // lets calls through
	HalfOpen              // lets one call at a time try
	Open                  // refuses calls
)

func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case HalfOpen:
		return "half-open"
	case Open:
		return "open"
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// A Breaker protects one source. Everybody who calls that source should share
// it, since what it counts and bounds is the source's load. It may be used
// concurrently and has nothing to close. A nil *Breaker protects nothing: its Do
// calls the function, and all the same contains it and returns with the context.
type Breaker struct {
	o        Options // with the defaults filled in
	timedOut error   // ErrTimeout, as one value of this Breaker: the cause of its timeouts and of no other's
	circuit  *circuit
	normal   *limiter
	degraded *limiter
	idle     *limiter // for calls in the background
	changes  notifier
	tally    tally
}

// New makes a Breaker. Its errors name the option that is wrong.
func New(o Options) (*Breaker, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Breaker{
		o:        o,
		timedOut: fmt.Errorf("%w after %v", ErrTimeout, o.Timeout),
		normal:   newLimiter(o.MaxConcurrent, o.MaxQueue),
		degraded: newLimiter(o.MaxDegraded, o.MaxQueue),
		idle:     newLimiter(o.MaxBackground, 0),
		changes:  notifier{tell: o.OnStateChange},
	}
	if o.Name != "" {
		b.timedOut = fmt.Errorf("%w after %v: %s", ErrTimeout, o.Timeout, o.Name)
	}
	if o.FailureRatio > 0 {
		b.circuit = newCircuit(o, b.changes.push)
	}
	return b, nil
}

// none stands in for a nil *Breaker: no circuit, no limits, no timeout.
var none = new(Breaker)

// Do calls fn, unless the breaker is open (ErrOpen) or fn's turn does not come
// in time (ErrLimited), and returns its error. fn runs in a goroutine of its own;
// its ctx has the values of ctx and ends with it or after Timeout.
//
// Do returns when fn does, with *PanicError or ErrGoexit if it ended so, and as
// soon as fn's context has ended even if fn has not: with ErrTimeout, or with the
// error of ctx, joined with its cause if it has one. An error that fn returns
// after the end of its context gives way to these, unless IsFailure clears it and
// the end was the caller's.
func (b *Breaker) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	if b == nil {
		b = none
	}
	return b.do(ctx, fn, nil, b.o.QueueTimeout)
}

// DoDegraded is Do within a smaller limit, for calls that a better-protected path
// would have saved: at most MaxDegraded of them run at a time, and they count
// within MaxConcurrent too. They wait for both within one QueueTimeout.
func (b *Breaker) DoDegraded(ctx context.Context, fn func(ctx context.Context) error) error {
	if b == nil {
		b = none
	}
	return b.do(ctx, fn, b.degraded, b.o.QueueTimeout)
}

// DoBackground is Do for calls that nobody waits for, such as refreshing what is
// still good enough. At most MaxBackground of them run at a time, and they count
// within MaxConcurrent too. They do not wait for a place, so they never stand
// before a call that somebody waits for: while one of those queues, they are
// refused with ErrLimited.
func (b *Breaker) DoBackground(ctx context.Context, fn func(ctx context.Context) error) error {
	if b == nil {
		b = none
	}
	return b.do(ctx, fn, b.idle, -1)
}

// State tells what a call would meet now. It does not wait.
func (b *Breaker) State() State {
	if b == nil {
		return Closed
	}
	return b.circuit.state()
}

// MaxDuration is the longest a call can take, QueueTimeout and Timeout together,
// or 0 if there is no bound but the caller's context.
func (b *Breaker) MaxDuration() time.Duration {
	if b == nil || b.o.Timeout <= 0 {
		return 0
	}
	if b.normal == nil && b.degraded == nil {
		return b.o.Timeout
	}
	return b.o.Timeout + max(0, b.o.QueueTimeout)
}

// do is all of them: extra is a limit beside that of all calls, budget how long
// to wait for a place, negative not at all.
func (b *Breaker) do(ctx context.Context, fn func(context.Context) error, extra *limiter, budget time.Duration) error {
	if ctx.Err() != nil {
		b.tally.left.Add(1)
		return ended(ctx)
	}
	if err := b.enter(ctx, extra, budget); err != nil {
		b.tally.refused(err)
		return err
	}
	t, ok := b.circuit.admit()
	if !ok {
		b.leave(extra)
		b.tally.open.Add(1)
		return ErrOpen
	}
	return b.run(ctx, fn, extra, t)
}

// enter takes a place in each limit. It gives up when the breaker opens.
func (b *Breaker) enter(ctx context.Context, extra *limiter, budget time.Duration) error {
	// The era first: if the breaker opens after the look at it, this era ends.
	w := waiting{ctx: ctx, era: b.circuit.era(), budget: budget}
	if b.circuit.refuses() {
		return ErrOpen
	}
	if err := extra.acquire(&w); err != nil {
		return err
	}
	if err := b.normal.acquire(&w); err != nil {
		extra.release()
		return err
	}
	return nil
}

func (b *Breaker) leave(extra *limiter) {
	b.normal.release()
	extra.release()
}

// run calls fn and gives the verdict on it once, as soon as the call is over for
// the caller. The places are given back when fn itself is over, and only after the
// verdict: the next in the queue must meet a breaker that knows it.
func (b *Breaker) run(ctx context.Context, fn func(context.Context) error, extra *limiter, t ticket) error {
	ctx, cancel := b.bound(ctx)
	defer cancel()

	b.tally.running.Add(1)
	failed := true          // unless fn returns and IsFailure clears its error
	var settled atomic.Bool // by fn's end or by its context's, whichever is first
	over := make(chan error, 1)
	go contain.Call(func() error {
		err := fn(ctx)
		failed = err != nil && (b.o.IsFailure == nil || b.o.IsFailure(err))
		return err
	}, func(err error) {
		if settled.CompareAndSwap(false, true) {
			err = b.judge(ctx, t, failed, err)
		} else {
			b.tally.stuck.Add(-1)
		}
		b.tally.running.Add(-1)
		b.leave(extra)
		over <- err
	})

	select {
	case err := <-over:
		return err
	case <-ctx.Done():
		b.tally.stuck.Add(1)
		if settled.CompareAndSwap(false, true) {
			return b.judge(ctx, t, true, ctx.Err())
		}
		b.tally.stuck.Add(-1)
		return <-over // it ended at the same moment
	}
}

// bound gives fn its context.
func (b *Breaker) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if b.o.Timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, b.o.Timeout, b.timedOut)
}

// judge gives the verdict on a call and returns what its caller gets.
func (b *Breaker) judge(ctx context.Context, t ticket, failed bool, err error) error {
	switch {
	case err == nil:
		b.circuit.settle(t, success)
		b.tally.successes.Add(1)
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), b.timedOut):
		b.circuit.settle(t, failure)
		b.tally.failures.Add(1)
		b.tally.timeouts.Add(1)
		err = b.timedOut
	case !failed:
		b.circuit.settle(t, success)
		b.tally.successes.Add(1)
	case ctx.Err() != nil:
		// The caller left. Whatever error this brought about, it says nothing
		// about the source: drivers have their own for a query cut short.
		b.circuit.settle(t, excluded)
		b.tally.excluded.Add(1)
		err = ended(ctx)
	default:
		b.circuit.settle(t, failure)
		b.tally.failures.Add(1)
	}
	return err
}

// ended is the error of a context that has ended, with its cause.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
