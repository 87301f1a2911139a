package guard

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/wait"
)

// A Class says which limits apply to a function. MaxConcurrent applies to all.
type Class uint8

const (
	// Normal is the class of most calls.
	Normal Class = iota
	// Degraded is for calls that are only made because something in front of the source
	// has failed, such as a shared cache. At most MaxDegraded of them run at a time.
	Degraded
	// Background is for calls without a waiting caller, such as a refresh of a value
	// that can still be used. At most MaxBackground of them run at a time. They do not
	// wait for a place, so they never delay a call with a waiting caller.
	Background
	classes
)

// A Place is the right to run one function. Make it with Acquire; it ends with Run or
// Release. One goroutine owns it.
//
// # Nested calls
//
// A function may make other calls of the same Breaker: the loader of a category reads
// products through a cache that shares its Breaker. If such functions held all places and
// waited for calls that wait for a place, they would wait for ever:
//
//	64 categories                           products
//	1 their loaders run, and hold all places
//	                                        2 each asks for a product, whose loader
//	                                          waits for a place
//	3 each waits for its product
//	                                        4 no place comes free
//
// So Acquire with the context of a running function returns a nested Place at once: the
// call shares the place of that function.
//
// That holds within one Breaker. If the functions of two Breakers hold all their places and wait
// for calls of the other Breaker, they wait until QueueTimeout or Timeout ends some of them.
type Place struct {
	b      *Breaker
	class  Class
	outer  *Place // the place of the function whose context it was acquired with; nil: none
	nested bool   // it shares the place of outer, and is not counted in the queue
	kept   bool   // made by Keep, without a function; Unkeep ends it
	began  time.Time
	member uint32 // the group of a trial that its function counts in, see trial.begun; 0: none
	state  atomic.Uint32
	tries  atomic.Bool // a half-open circuit let its call in, and has no verdict yet
}

// The states of a Place.
const (
	acquired uint32 = iota
	running         // the function has been called and has not returned
	over
)

type placeKey struct{}

func placeOf(ctx context.Context) *Place {
	p, _ := ctx.Value(placeKey{}).(*Place)
	return p
}

// Inside reports whether ctx is the context of a function that b runs, or made from one: a
// call with it is nested.
func (b *Breaker) Inside(ctx context.Context) bool { return placeOf(ctx).inside(b.orOff()) }

// inside reports whether b still runs the function of p or a function that called it.
func (p *Place) inside(b *Breaker) bool {
	for ; p != nil; p = p.outer {
		if p.b == b && p.state.Load() == running {
			return true
		}
	}
	return false
}

// Keep returns a context for work that several functions wait for, such as a shared load. If ctx is
// inside, the new context stays inside after the function of ctx has returned: other functions that
// wait for the work may still hold every place, and work that was no longer nested would wait for a
// place behind them. Unkeep ends that, so that a goroutine of the work that lives on with the context
// is not inside for ever.
func (b *Breaker) Keep(ctx context.Context) context.Context {
	b = b.orOff()
	outer := placeOf(ctx)
	if !outer.inside(b) {
		return ctx
	}
	p := &Place{b: b, outer: outer, nested: true, kept: true}
	p.state.Store(running)
	return context.WithValue(ctx, placeKey{}, p)
}

// Unkeep makes ctx, which Keep has returned, no longer inside. The caller calls it when the work is over.
func (b *Breaker) Unkeep(ctx context.Context) {
	if p := placeOf(ctx); p != nil && p.kept && p.b == b.orOff() {
		p.state.Store(over)
	}
}

// Acquire waits for a place for a function. It returns ErrOpen or ErrLimited where Do does.
// If ctx ends while Acquire waits, it returns an ErrLimited that matches the error of ctx and
// its cause; a place that is free is taken even if ctx has ended. The deadline that ctx has
// when the waiting begins decides whether Acquire waits at all.
//
// The caller may do something in its place before Run, such as acquiring a lease, and may
// give the place back with Release instead. If there is nothing to run it should do so at
// once, because other calls wait.
func (b *Breaker) Acquire(ctx context.Context, class Class) (*Place, error) {
	return b.orOff().acquire(ctx, class, class != Background)
}

// TryAcquire is Acquire without waiting: it returns ErrLimited if no place is free.
func (b *Breaker) TryAcquire(ctx context.Context, class Class) (*Place, error) {
	return b.orOff().acquire(ctx, class, false)
}

func (b *Breaker) acquire(ctx context.Context, class Class, waits bool) (*Place, error) {
	if b.circuit.refuses() {
		b.tally.refused(ErrOpen)
		return nil, ErrOpen
	}
	p := &Place{b: b, class: class}
	if class != Background { // no caller waits for it, not even the function that started it
		p.outer = placeOf(ctx)
	}
	if p.nested = p.outer.inside(b); p.nested {
		return p, nil
	}
	if err := b.queue.acquire(ctx, p, waits); err != nil {
		b.tally.refused(err)
		return nil, err
	}
	return p, nil
}

// Release gives the place back if Run has not been called. It may be called more than once
// and after Run, so that it can be deferred. On a nil Place it does nothing.
func (p *Place) Release() {
	if p != nil && p.state.CompareAndSwap(acquired, over) && !p.nested {
		p.b.queue.release(p, notCalled, false)
	}
}

// Run calls fn with ctx as [Breaker.Do] does, and gives the place back when fn has returned,
// which may be after Run has returned. If the breaker has opened since Acquire, Run does not
// call fn and returns ErrOpen. A second Run, or a Run after Release, returns ErrLimited.
func (p *Place) Run(ctx context.Context, fn func(ctx context.Context) error) error {
	b := p.b
	if ctx.Err() != nil {
		p.Release()
		b.tally.left.Add(1)
		return wait.Ended(ctx)
	}
	if !p.state.CompareAndSwap(acquired, running) {
		return ErrLimited
	}
	settle, ok := p.admit()
	if !ok {
		p.end(notCalled, false)
		b.tally.refused(ErrOpen)
		return ErrOpen
	}
	return p.run(context.WithValue(ctx, placeKey{}, p), fn, settle)
}

// admit reports whether the function of p may run; if so, its verdict must be passed to settle.
// A half-open circuit lets one call in, and with it the calls that its function makes: their
// verdicts do not count.
func (p *Place) admit() (settle func(verdict error), ok bool) {
	for outer := p.outer; outer != nil; outer = outer.outer {
		if outer.b == p.b && outer.tries.Load() {
			return func(error) {}, true
		}
	}
	settle, tries, ok := p.b.circuit.admit()
	p.tries.Store(ok && tries)
	return settle, ok
}

// run calls fn and passes the verdict to settle as soon as the call is over for its
// caller. It gives the place back when fn itself is over, and only after the verdict,
// so that the breaker knows the verdict when the next call leaves the queue.
func (p *Place) run(caller context.Context, fn func(context.Context) error, settle func(error)) error {
	b := p.b
	ctx, cancel := b.bound(caller)
	defer cancel()

	b.tally.running.Add(1)
	cleared, late, err := contain.Race(ctx, func() (cleared bool, err error) {
		err = fn(ctx)
		return b.clears(err), err
	})
	v, err := b.judge(caller, ctx, cleared, err)
	if v == failure || v == timeout {
		failed := err // a copy, so that not every call's err is allocated on the heap
		b.lastFail.Store(&failed)
	}
	p.tries.Store(false)
	settle(v)
	b.tally.judged(v)

	speaks := v == success && err == nil || v == timeout
	if late == nil {
		b.tally.running.Add(-1)
		p.end(time.Since(p.began), speaks)
		return err
	}
	b.tally.stuck.Add(1)
	go func() {
		<-late
		b.tally.stuck.Add(-1)
		b.tally.running.Add(-1)
		p.end(time.Since(p.began), speaks)
	}()
	return err
}

// end gives the place back. took is how long its function ran, or notCalled.
func (p *Place) end(took time.Duration, speaks bool) {
	p.state.Store(over)
	if !p.nested {
		p.b.queue.release(p, took, speaks)
	}
}
