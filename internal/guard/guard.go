// Package guard implements package breaker, whose documentation says what is promised. It also has
// what only package cache needs: a [Place], which can be acquired before there is a function to run
// in it, and a [Class] of functions.
//
// A *breaker.Breaker can be converted into a *[Breaker], which has more methods, and back.
package guard

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// The errors of package breaker.
var (
	ErrOpen    = errors.New("breaker: open")
	ErrLimited = errors.New("breaker: too many calls")
	ErrTimeout = errors.New("breaker: call timed out")
)

// State says whether a Breaker lets calls through.
type State int

// The states, in the order of gobreaker's.
const (
	Closed   State = iota // lets calls through
	HalfOpen              // lets one call at a time try
	Open                  // refuses calls
)

// String returns the state in lower case.
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

// A Breaker runs calls as package breaker describes. A nil *Breaker has no limits, but its calls are
// still contained and return with their context.
type Breaker struct {
	o        Options // with the defaults filled in
	timedOut error   // an ErrTimeout that only this Breaker uses: the cause of its timeouts
	circuit  *circuit
	queue    *queue
	hook     hook
	tally    tally
	log      *logonce.Log
	lastFail atomic.Pointer[error] // for the log; set before the circuit gets the verdict
}

// New returns a Breaker, or an error that names the option that is wrong.
func New(o Options) (*Breaker, error) {
	capped := o.QueueTimeout != 0
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Breaker{
		o:        o,
		timedOut: fmt.Errorf("%w after %v", ErrTimeout, o.Timeout),
		queue:    newQueue(o, capped),
		log:      logonce.New(o.Logger, "levee: "),
	}
	if o.Name != "" {
		b.timedOut = fmt.Errorf("%w after %v: %s", ErrTimeout, o.Timeout, o.Name)
		b.log = b.log.To(o.Logger.With("breaker", o.Name))
	}
	b.hook = hook{fn: o.OnStateChange, failed: func(err error) { b.log.Warn("a hook panicked", "error", err) }}
	if o.FailureRatio > 0 {
		b.circuit = newCircuit(o, b.changed)
	}
	return b, nil
}

// off is used in place of a nil *Breaker: it has no circuit, no limits and no timeout.
var off = new(Breaker)

func (b *Breaker) orOff() *Breaker {
	if b == nil {
		return off
	}
	return b
}

// Do acquires a place of class Normal and runs fn in it.
func (b *Breaker) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	p, err := b.Acquire(ctx, Normal)
	if err != nil {
		return err
	}
	return p.Run(ctx, fn)
}

// changed notes a change of state: only a closed breaker has a queue. It runs with gobreaker's
// mutex held and must not block for long.
func (b *Breaker) changed(from, to State) {
	switch to {
	case Open:
		b.queue.close(ErrOpen)
	case Closed:
		b.queue.open()
	}
	b.logChange(from, to)
	b.hook.push(from, to)
}

// logChange logs that the breaker has opened or closed. It does not log the tries in between.
func (b *Breaker) logChange(from, to State) {
	switch {
	case from == Closed && to == Open:
		b.log.Warn("a breaker is open: the source fails and is not called for a while", "error", *b.lastFail.Load())
	case to == Closed:
		b.log.Info("a breaker is closed again: the source works")
	}
}

// Name returns [Options.Name].
func (b *Breaker) Name() string { return b.orOff().o.Name }

// State returns the present state. It does not block.
func (b *Breaker) State() State {
	return b.orOff().circuit.state()
}

// MaxDuration returns the longest time that a call without a deadline can take, QueueTimeout
// plus Timeout, or 0 if there is no bound. If QueueTimeout was given, calls with a deadline
// take no longer either.
func (b *Breaker) MaxDuration() time.Duration {
	if b == nil || b.o.Timeout <= 0 {
		return 0
	}
	if b.o.MaxConcurrent < 0 && b.o.MaxDegraded < 0 {
		return b.o.Timeout
	}
	return b.o.Timeout + max(0, b.o.QueueTimeout)
}

// bound returns ctx with the breaker's Timeout, for fn.
func (b *Breaker) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if b.o.Timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, b.o.Timeout, b.timedOut)
}

// clears reports whether err is an error that IsFailure does not count against the source.
func (b *Breaker) clears(err error) bool {
	return err != nil && b.o.IsFailure != nil && !b.o.IsFailure(err)
}

// judge returns the verdict on a call that ended with err, and the error for its caller. ctx is
// the context of its function, made by bound from that of the caller. cleared is the result of clears.
func (b *Breaker) judge(caller, ctx context.Context, cleared bool, err error) (verdict, error) {
	switch {
	case err == nil:
		return success, nil
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), b.timedOut) && !errors.Is(context.Cause(caller), b.timedOut):
		return timeout, b.timedOut // its own, not that of a function that it is nested in
	case cleared:
		return success, err
	case ctx.Err() != nil:
		// The caller left. An error that follows from this says nothing about the
		// source: drivers have their own error for a query cut short.
		return excluded, wait.Ended(ctx)
	default:
		return failure, err
	}
}

// A callerLeft marks a refusal whose caller left.
type callerLeft struct{ error }

func (l *callerLeft) Unwrap() error { return l.error }
