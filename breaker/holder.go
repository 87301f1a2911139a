package breaker

import (
	"context"
	"sync/atomic"
	"time"
)

// Inner calls
//
// A function may make a call of the same Breaker itself, or wait for one: the loader of
// a category reads products through a cache that shares its Breaker. If such functions
// held all places and waited for calls that wait for a place, nothing would go on:
//
//	64 categories                           products
//	1 their loaders run, and hold all places
//	                                        2 each asks for a product, whose loader
//	                                          waits for a place
//	3 each waits for its product
//	                                        4 no place comes free
//
// So a function that waits for others does not count: its place is free for inner
// calls, and for them alone. Inner calls are those made with the context of a function,
// and those that such a function waits for, whoever made them (Call.Inner). When the wait
// is over the function goes on in its place, or in the next one that comes free, before
// all others. So no more than the limit are at work at any time, and if all that hold
// places wait, an inner call runs: there is no deadlock at any limit. A function of another
// Breaker calls from outside.

// A holder is a function that has a place.
type holder struct {
	queue *queue
	class Class
	outer *holder // the function that this one was called from; nil: none

	// Guarded by queue.mu.
	inner  bool // is an inner call
	began  time.Time
	pauses int // of its goroutines wait for others

	over atomic.Bool
}

type holderKey struct{}

func holderOf(ctx context.Context) *holder {
	h, _ := ctx.Value(holderKey{}).(*holder)
	return h
}

// runs reports whether h or a function that it was called from has a place of q and still
// runs.
func (h *holder) runs(q *queue) bool {
	for ; h != nil; h = h.outer {
		if h.queue == q && !h.over.Load() {
			return true
		}
	}
	return false
}

// Inside reports whether ctx is that of a function that b runs, or made from one.
func (b *Breaker) Inside(ctx context.Context) bool { return holderOf(ctx).runs(b.orOff().queue) }

// Pause says that the function whose context ctx is, if it is one, waits for others,
// until the returned function is called; that one waits in turn until the function may
// go on, or ctx ends. Meanwhile inner calls may have its place. Calls of Do and its
// kin with ctx itself do that on their own.
func Pause(ctx context.Context) (resume func()) {
	h := holderOf(ctx)
	if h == nil {
		return func() {}
	}
	h.queue.pause(h)
	return func() { h.queue.unpause(ctx, h) }
}

// pause lets inner calls have the place of h.
func (q *queue) pause(h *holder) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if h.pauses++; h.pauses > 1 || h.over.Load() {
		return
	}
	q.each(h.class, func(of Class) { q.active[of]-- })
	q.dispatch(time.Now())
}

// unpause is the end of pause.
func (q *queue) unpause(ctx context.Context, h *holder) {
	if q == nil {
		return
	}
	q.mu.Lock()
	if h.pauses > 1 || h.over.Load() {
		h.pauses--
		q.mu.Unlock()
		return
	}
	if q.fits(h.class, true) {
		q.resume(h)
		q.mu.Unlock()
		return
	}
	w := &waiter{call: Call{Class: h.class}, holder: h, ready: make(chan error, 1)}
	q.resumed.push(w)
	q.mu.Unlock()
	select {
	case <-w.ready: //nolint:errcheck // always nil: nobody is refused here
	case <-ctx.Done(): // the function has to end, and does so beyond the limit
		q.mu.Lock()
		defer q.mu.Unlock()
		if w.line != nil {
			w.line.remove(w)
			q.resume(h)
		}
	}
}

// resume ends a pause of h. The caller holds q.mu.
func (q *queue) resume(h *holder) {
	if h.pauses--; h.pauses > 0 || h.over.Load() {
		return
	}
	q.each(h.class, func(of Class) { q.active[of]++ })
}
