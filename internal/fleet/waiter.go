package fleet

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// A Waiter waits until the lease that another process has of an id may have ended: a
// message says so, or it is time to call Begin without one. Make it with NewWaiter
// before the first Begin, so that no message is missed. One goroutine may use it. A nil
// Waiter is for a caller who does not wait.
type Waiter struct {
	group *Group
	id    string
	wake  chan struct{} // nil without Redis
	next  *Waiter       // another Waiter for id, see subscription
	until time.Time     // when the wait budget ends; zero: Wait has not been called yet
	pause time.Duration // to the next look without a message
}

// A look is a Begin without a message, in case a message is lost. Looks come at growing
// intervals, from 5 ms while messages do not arrive and from 100 ms while they do, up to
// 250 ms. Each interval varies by up to a quarter, so none is longer than 312 ms.
const (
	firstLook     = 5 * time.Millisecond
	firstLookLive = 100 * time.Millisecond
	maxLook       = 250 * time.Millisecond
)

// NewWaiter returns a Waiter for id. It needs a Close.
func (g *Group) NewWaiter(id string) *Waiter {
	w := &Waiter{group: g, id: id, pause: firstLook}
	if g.msgs != nil {
		w.wake = make(chan struct{}, 1)
		g.msgs.listen(w)
	}
	return w
}

// Close ends the Waiter's share of the messages.
func (w *Waiter) Close() {
	if w != nil && w.wake != nil {
		w.group.msgs.unlisten(w)
	}
}

// Ready drops messages that have arrived. Call it just before Begin, whose reply is newer than they.
func (w *Waiter) Ready() {
	if w == nil {
		return
	}
	select {
	case <-w.wake:
	default:
	}
}

// Wait waits until it is time for another Begin, and returns true. remaining is how long
// the lease lasts if its holder does not renew it. Wait returns false when ctx ends, and
// when Options.WaitBudget has passed since the first Wait.
func (w *Waiter) Wait(ctx context.Context, remaining time.Duration) bool {
	counts := &w.group.counts
	counts.waits.Add(1)
	if w.until.IsZero() {
		w.until = time.Now().Add(w.group.o.WaitBudget)
	}
	look, budget := w.untilLook(remaining), time.Until(w.until)
	timer := time.NewTimer(min(look, budget))
	defer timer.Stop()
	select {
	case <-w.wake:
		counts.wakes.Add(1)
		return true
	case <-ctx.Done():
		return false
	case <-timer.C:
		if budget <= look {
			counts.gaveUp.Add(1)
			return false
		}
		counts.polls.Add(1)
		return true
	}
}

// untilLook returns the time to the next look, which comes at most 2 ms after the lease
// of a dead holder has ended.
func (w *Waiter) untilLook(remaining time.Duration) time.Duration {
	if w.group.Live() {
		w.pause = max(w.pause, firstLookLive)
	}
	pause := wait.Jitter(w.pause, 0.25)
	w.pause = min(2*w.pause, maxLook)
	return min(pause, remaining+2*time.Millisecond)
}
