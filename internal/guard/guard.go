// Package guard is the machinery of package breaker, which says what is promised, and the part of
// it that package cache alone needs: a [Place] that is acquired before there is something to run
// in it, and a [Class] of functions.
//
// A *breaker.Breaker is a *[Breaker] with fewer methods: one is converted into the other.
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

// State is what a Breaker does with calls.
type State int

// The order is gobreaker's.
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

// A Breaker is that of package breaker. The calls of a nil *Breaker are not bounded, but are still
// contained and return with their context.
type Breaker struct {
	o        Options // with the defaults filled in
	timedOut error   // ErrTimeout, as one value of this Breaker: the cause of its timeouts and of no other's
	circuit  *circuit
	queue    *queue
	hook     hook
	tally    tally
	log      *logonce.Log
	lastFail atomic.Pointer[error] // for the log; set before the circuit hears of the failure
}

// New makes a Breaker. Its errors name the option that is wrong.
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

// off stands in for a nil *Breaker: no circuit, no limits, no timeout.
var off = new(Breaker)

func (b *Breaker) orOff() *Breaker {
	if b == nil {
		return off
	}
	return b
}

// Do is Acquire and Run for a function of class Normal.
func (b *Breaker) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	p, err := b.Acquire(ctx, Normal)
	if err != nil {
		return err
	}
	return p.Run(ctx, fn)
}

// changed comes under gobreaker's mutex and must not block for long. Only a closed
// breaker has a queue.
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

// logChange says that the breaker opens or closes. Between the two it may try several
// times, of which nobody has to know.
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

// State returns the present state. It does not wait.
func (b *Breaker) State() State {
	return b.orOff().circuit.state()
}

// MaxDuration is the longest a call can take whose caller has no deadline, QueueTimeout
// and Timeout together, or 0 if there is no bound. With a deadline it is the bound of all
// calls if QueueTimeout was given.
func (b *Breaker) MaxDuration() time.Duration {
	if b == nil || b.o.Timeout <= 0 {
		return 0
	}
	if b.o.MaxConcurrent < 0 && b.o.MaxDegraded < 0 {
		return b.o.Timeout
	}
	return b.o.Timeout + max(0, b.o.QueueTimeout)
}

// bound returns the context for fn.
func (b *Breaker) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if b.o.Timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, b.o.Timeout, b.timedOut)
}

// clears reports whether IsFailure says that err does not speak against the source.
func (b *Breaker) clears(err error) bool {
	return err != nil && b.o.IsFailure != nil && !b.o.IsFailure(err)
}

// judge returns the verdict on a call and the error for its caller. cleared is
// what clears says of err.
func (b *Breaker) judge(ctx context.Context, cleared bool, err error) (verdict, error) {
	switch {
	case err == nil:
		return success, nil
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), b.timedOut):
		return timeout, b.timedOut
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

// A gone tells that the callers left from other refusals.
type gone struct{ error }

func (g *gone) Unwrap() error { return g.error }
