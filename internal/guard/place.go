package guard

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/wait"
)

// A Class says within which limits a function runs. All count within MaxConcurrent.
type Class uint8

const (
	// Normal is the class of most calls.
	Normal Class = iota
	// Degraded is for calls that are only made because something before the source
	// has failed, such as a shared cache. At most MaxDegraded of them run at a time.
	Degraded
	// Background is for calls that nobody waits for, such as a refresh of a value
	// that can still be used. At most MaxBackground of them run at a time. They do not
	// wait for a place, so they never delay a call that somebody waits for.
	Background
	classes
)

// A Place is the right to run one function. Make it with Acquire; it ends with Run or
// Release. One goroutine owns it.
//
// # Nested calls
//
// A function may need other calls of the same Breaker: the loader of a category reads
// products through a cache that shares its Breaker. If such functions held all places and
// waited for calls that wait for a place, nothing would go on:
//
//	64 categories                           products
//	1 their loaders run, and hold all places
//	                                        2 each asks for a product, whose loader
//	                                          waits for a place
//	3 each waits for its product
//	                                        4 no place comes free
//
// So Acquire with the context of a function that runs returns a nested Place at once: the
// call runs in the place of that function, beside it.
//
// That holds within one Breaker. If functions of one hold all its places and wait for those of
// another, and the other way round, nothing goes on until QueueTimeout or Timeout ends some.
type Place struct {
	b      *Breaker
	class  Class
	outer  *Place // of the function whose context it was acquired with; nil: none
	nested bool   // within outer, so the queue does not know it
	kept   bool   // of no function: it ends with the work, see Keep
	began  time.Time
	member uint32 // of a group of a trial; 0: of none
	state  atomic.Uint32
	tries  atomic.Bool // its call was let in by a half-open circuit, which has no verdict yet
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

// Inside reports whether ctx is that of a function that b runs, or made from one: a call
// with it is a nested one.
func (b *Breaker) Inside(ctx context.Context) bool { return placeOf(ctx).inside(b.orOff()) }

// inside reports whether the function of p, or one that it was called from, is one of b and
// still runs.
func (p *Place) inside(b *Breaker) bool {
	for ; p != nil; p = p.outer {
		if p.b == b && p.state.Load() == running {
			return true
		}
	}
	return false
}

// Keep returns ctx for work that functions wait for, such as the load that several of them
// share. If ctx is inside, what Keep returns stays so when the function of ctx has returned:
// of those who wait for the work others may still run, and hold every place. Work that had lost
// its nesting would wait for a place behind them. Unkeep ends it: a context that the work has handed to a
// goroutine of its own must not be inside for as long as that lives.
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

// Unkeep ends what Keep has begun, when the work with its context is over.
func (b *Breaker) Unkeep(ctx context.Context) {
	if p := placeOf(ctx); p != nil && p.kept && p.b == b.orOff() {
		p.state.Store(over)
	}
}

// Acquire waits for a place for a function. It returns ErrOpen or ErrLimited where Do does.
// The end of ctx ends the waiting, with an ErrLimited that matches the error of ctx and its
// cause, and nothing else: a place that is free is taken also after it. The deadline of ctx,
// as it is when the waiting begins, decides whether it is worth while.
//
// The caller may do something in its place before Run, such as asking for a lease, and may
// give the place back by Release instead. It should do so at once if there is nothing to
// run: others wait.
func (b *Breaker) Acquire(ctx context.Context, class Class) (*Place, error) {
	return b.orOff().acquire(ctx, class, class != Background)
}

// TryAcquire is Acquire for a call that does not wait: it returns ErrLimited if no place is
// free.
func (b *Breaker) TryAcquire(ctx context.Context, class Class) (*Place, error) {
	return b.orOff().acquire(ctx, class, false)
}

func (b *Breaker) acquire(ctx context.Context, class Class, waits bool) (*Place, error) {
	if b.circuit.refuses() {
		b.tally.refused(ErrOpen)
		return nil, ErrOpen
	}
	p := &Place{b: b, class: class}
	if class != Background { // nobody waits for it, also not the function that has begun it
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
// and after Run, so that it can be deferred. A nil Place is none.
func (p *Place) Release() {
	if p != nil && p.state.CompareAndSwap(acquired, over) && !p.nested {
		p.b.queue.release(p, notCalled, false)
	}
}

// Run calls fn as [Breaker.Do] does, with ctx, and gives the place back when fn has returned:
// that may be later than Run does. Nothing is called, and ErrOpen returned, if the breaker
// has opened since Acquire. A second Run, and one after Release, returns ErrLimited.
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

// admit lets the function of p run, whose verdict must then be given to settle. A half-open
// circuit lets one call in, and with it those that its function makes: their verdicts are part
// of its own.
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

// run calls fn and gives the verdict as soon as the call is over for its caller.
// The place is given back when fn itself is over, and only after the verdict,
// so that the next call from the queue meets a breaker that knows the verdict.
func (p *Place) run(ctx context.Context, fn func(context.Context) error, settle func(error)) error {
	b := p.b
	ctx, cancel := b.bound(ctx)
	defer cancel()

	b.tally.running.Add(1)
	cleared, late, err := contain.Race(ctx, func() (cleared bool, err error) {
		err = fn(ctx)
		return b.clears(err), err
	})
	v, err := b.judge(ctx, cleared, err)
	if v == failure || v == timeout {
		failed := err // a copy, or each call's error would be on the heap
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

// end gives the place of a function back that took so long, or was notCalled.
func (p *Place) end(took time.Duration, speaks bool) {
	p.state.Store(over)
	if !p.nested {
		p.b.queue.release(p, took, speaks)
	}
}
