package fleet

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// A Waiter waits until the lease of an id that another process has may have ended: a
// message says so, or it is time to look without one. Make it with NewWaiter before
// the first Begin, so that no message is missed. It is for one goroutine. A nil Waiter
// is one for a caller who does not wait.
type Waiter struct {
	group *Group
	id    string
	wake  chan struct{} // nil without Redis
	next  *Waiter       // another Waiter for id, see subscription
	until time.Time     // when the wait budget ends; zero: nothing of it is spent
	pause time.Duration // to the next look without a message
}

// Looking without a message is the safety net under the messages: at growing
// intervals, from 5 ms while messages do not arrive and from 100 ms while they do, up to
// 250 ms. Each interval is longer or shorter by up to a quarter, so none is longer than
// 312 ms.
const (
	firstLook     = 5 * time.Millisecond
	firstLookLive = 100 * time.Millisecond
	maxLook       = 250 * time.Millisecond
)

// NewWaiter makes a Waiter for id. It needs a Close.
func (g *Group) NewWaiter(id string) *Waiter {
	w := &Waiter{group: g, id: id, pause: firstLook}
	if g.msgs != nil {
		w.wake = make(chan struct{}, 1)
		g.msgs.listen(w)
	}
	return w
}

// Close ends listening.
func (w *Waiter) Close() {
	if w != nil && w.wake != nil {
		w.group.msgs.unlisten(w)
	}
}

// Ready forgets messages from before the coming Begin, whose answer is newer.
func (w *Waiter) Ready() {
	if w == nil {
		return
	}
	select {
	case <-w.wake:
	default:
	}
}

// Wait waits for another look at the lease, which lasts for remaining if its holder
// does not renew it. It reports false when ctx ends, and when the first Wait is as long
// ago as the wait budget.
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

// untilLook returns the time to the next look. It comes no later than the end of a dead
// holder's lease.
func (w *Waiter) untilLook(remaining time.Duration) time.Duration {
	if w.group.Live() {
		w.pause = max(w.pause, firstLookLive)
	}
	pause := wait.Jitter(w.pause, 0.25)
	w.pause = min(2*w.pause, maxLook)
	return min(pause, remaining+2*time.Millisecond)
}
