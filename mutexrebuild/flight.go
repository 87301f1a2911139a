package mutexrebuild

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/logonce"
)

// A flight is the shared effort of all callers who want one id at one time.
type flight[T any] struct {
	id   string
	ctx  context.Context // the values of the caller who began it; never ends
	load Load[T]
	done chan struct{} // closed when what the last block below holds is final

	// Guarded by Group.mu until done is closed.
	joined int           // callers so far; each has its number, from 1
	cut    int           // callers up to this number may take the result
	void   bool          // invalidated since the load began; without Redis this is the lease
	wake   chan struct{} // something happened to id in another process; made by rebuild

	spare    *Result[T]    // what answers if no load does
	spareCut int           // callers up to this number may take it
	late     chan struct{} // somebody beyond that has joined; made with the spare

	result Result[T]
	err    error
	next   *flight[T] // for the callers beyond the cut
}

// join puts the caller on the flight of id. If there is none it opens one, which
// the caller has to start.
func (g *Group[T]) join(ctx context.Context, id string, load Load[T]) (f *flight[T], number int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, 0, ErrClosed
	}
	f = g.flights[id]
	switch {
	case f == nil:
		f = g.open(context.WithoutCancel(ctx), id, load)
	case f.err != nil: // landed with an error that is held
		g.counts.held.Add(1)
		return f, 0, nil
	}
	f.joined++
	f.tellLate()
	return f, f.joined, nil
}

// open makes a flight that others can join. The caller holds g.mu.
func (g *Group[T]) open(ctx context.Context, id string, load Load[T]) *flight[T] {
	f := newFlight(ctx, id, load)
	g.flights[id] = f
	g.active.Add(1)
	return f
}

func newFlight[T any](ctx context.Context, id string, load Load[T]) *flight[T] {
	return &flight[T]{id: id, ctx: ctx, load: load, done: make(chan struct{})}
}

// start begins a flight on the goroutine of the caller who opened it. Most
// flights end with the first read, and to hand that over to another goroutine
// and back would take a good part of the time that Redis does. Where the read
// could hold the caller beyond its context, and for all that follows the read,
// the flight has a goroutine of its own.
func (g *Group[T]) start(ctx context.Context, f *flight[T]) {
	if g.store == nil || !g.store.prompt(ctx) {
		go g.fly(f, g.answer)
		return
	}
	handedOver := false
	contain.Call(func() error {
		g.prepare(f)
		data, err := g.store.getHere(ctx, f.id)
		next := g.unknown
		if err == nil {
			var ok bool
			if f.result, ok = g.decode(f, data); ok {
				return nil
			}
			next = func(f *flight[T]) (Result[T], error) { return g.rebuild(f, data) }
		} else if ctx.Err() != nil { // that the caller left says nothing about Redis
			next = g.answer
		}
		handedOver = true
		go g.fly(f, next)
		return nil
	}, func(err error) { // also when the codec has panicked
		if !handedOver {
			g.land(f, err)
		}
	})
}

// fly takes a flight to its end by what answer finds.
func (g *Group[T]) fly(f *flight[T], answer func(*flight[T]) (Result[T], error)) {
	contain.Call(func() (err error) {
		f.result, err = answer(f)
		return err
	}, func(err error) { g.land(f, err) })
}

// land ends a flight. Everybody takes an error; a value is only for those whom
// the cut includes, and the others' flight begins at once with all of them on
// board, so that no caller waits for more than two reads that find something.
func (g *Group[T]) land(f *flight[T], err error) {
	failpoint.At("landing")
	g.mu.Lock()
	if err != nil && f.spare != nil && !g.closed {
		g.spare(f.id, err)
		f.result, f.cut, err = *f.spare, f.spareCut, nil
	}
	f.err = err
	if err == nil && f.joined > f.cut && g.goodForAll(f) {
		f.cut = f.joined
	}
	switch {
	case err != nil:
		f.cut = f.joined
		if g.o.ErrorHold < 0 || g.closed {
			delete(g.flights, f.id)
			break
		}
		time.AfterFunc(g.errorHold(), func() { g.drop(f) })
	case f.joined > f.cut:
		f.next = g.open(f.ctx, f.id, f.load)
		f.next.joined = f.joined - f.cut
		go g.fly(f.next, g.answer)
	default:
		delete(g.flights, f.id)
	}
	g.mu.Unlock()
	close(f.done)
	g.active.Done()
}

// goodForAll reports whether the owner lets those beyond the cut have the result. It
// asks with g.mu held, so that nobody joins between the question and the landing.
func (g *Group[T]) goodForAll(f *flight[T]) bool {
	return g.events.Current != nil && f.result.Origin == Found && f.result.Condition != Spare &&
		g.events.Current(f.id, f.result.Mark)
}

// errorHold is for how long an error is held. It varies, so that what failed
// together is not tried again together.
func (g *Group[T]) errorHold() time.Duration {
	return time.Duration(float64(g.o.ErrorHold) * (0.8 + 0.4*rand.Float64()))
}

func (g *Group[T]) drop(f *flight[T]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.flights[f.id] == f {
		delete(g.flights, f.id)
	}
}

// void ends what this process alone knows about id: the held error, and without
// Redis the right of a load that is under way.
func (g *Group[T]) void(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.spared, id)
	if f := g.renewal.byID[id]; f != nil {
		f.void = true
	}
	f := g.flights[id]
	if f == nil {
		return
	}
	f.void = true
	if f.err != nil {
		delete(g.flights, id)
	}
}

// setAside keeps a Spare, for those who had joined before it was read.
func (g *Group[T]) setAside(f *flight[T], spare *Result[T], cut int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.spare, f.spareCut = spare, cut
	if f.late == nil {
		f.late = make(chan struct{}, 1)
	}
	if f.joined > cut {
		f.tellLate()
	}
}

// tellLate makes the flight look whether its Spare is good for the latest too. The
// caller holds Group.mu.
func (f *flight[T]) tellLate() {
	select {
	case f.late <- struct{}{}:
	default: // there is no spare, or it will look anyhow
	}
}

// lookAgain reads the Spare of a flight again, for those who have joined since: by
// what was read before they came they could miss an invalidation.
func (g *Group[T]) lookAgain(f *flight[T]) {
	g.mu.Lock()
	cut := f.joined
	g.mu.Unlock()
	spare := *f.spare
	if g.events.Mark != nil {
		spare.Mark = g.events.Mark(f.id)
	}
	data, err := g.store.get(f.ctx, f.id)
	if err != nil || len(data) == 0 {
		return
	}
	spare.Value, spare.Condition = g.judge(f.id, data)
	if spare.Bytes = len(data); spare.Condition == Unfit {
		g.counts.unfit.Add(1)
		return
	}
	g.setAside(f, &spare, cut)
}

// spareFor is what a caller takes who can wait no longer, nil if there is nothing.
func (g *Group[T]) spareFor(f *flight[T], number int) *Result[T] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f.spare == nil || number > f.spareCut {
		return nil
	}
	g.counts.spared.Add(1)
	spare := *f.spare
	spare.First = number == 1
	return &spare
}

// A failure is the error of a load in whose place a Spare has answered.
type failure struct{ err error }

// spare holds the error of a load as a flight without a Spare holds its own: who
// comes next does not load, but looks into Redis, so that an invalidation ends the
// Spare at once. The caller holds g.mu.
func (g *Group[T]) spare(id string, err error) {
	g.counts.spared.Add(1)
	if g.spared[id] != nil || g.o.ErrorHold < 0 {
		return
	}
	g.journal.Warn("a load failed and an old value answers", logonce.Name("id", id), "error", err)
	held := &failure{err}
	g.spared[id] = held
	time.AfterFunc(g.errorHold(), func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.spared[id] == held {
			delete(g.spared, id)
		}
	})
}

// heldBack is the error that a flight with a Spare takes as that of its load.
func (g *Group[T]) heldBack(f *flight[T]) error {
	if f.spare == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if held := g.spared[f.id]; held != nil {
		return held.err
	}
	return nil
}

// note makes everybody who has joined so far a taker of what the next operation
// decides.
func (g *Group[T]) note(f *flight[T]) (number int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.cut = f.joined
	return f.cut
}

// confirm is the commit of a group without Redis: it reports whether id has not
// been invalidated since unvoid, and notes the callers in the same moment.
func (g *Group[T]) confirm(f *flight[T]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.cut = f.joined
	return !f.void
}

func (g *Group[T]) unvoid(f *flight[T]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.void = false
}
