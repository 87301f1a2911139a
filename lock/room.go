package lock

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// A process waits for a lock once, however many of its goroutines do. They stand
// in a room, in the order they came. The first, the driver, acts for all: it asks
// for the lock, which puts the room's entry in the queue if it is taken, then
// waits for the news that the entry has been granted the lock, and asks again from
// time to time, which also tells others that this process is alive and finds a
// grant whose news was lost. When the driver has the lock or gives up, the next
// in line becomes the driver. There is no goroutine besides those that wait.
//
// An entry belongs to one room. One that comes back when its room is gone, by a
// command that was under way for long, gets the lock at most for the moment it
// takes us to hear of it.

// A roomKey is what those in one room have in common: one bid is for all of them.
type roomKey struct {
	record string
	mode   mode
	places int
	lease  time.Duration
	label  string
	copies int
	timeo  time.Duration
	solo   string // strict order: a room for each
}

type room struct {
	c     *core
	key   roomKey
	t     target
	entry string
	wake  chan struct{} // a grant, or a reason to look for one

	// guarded by core.mu
	line   list.List // of *waiter; the first is the driver
	queued bool      // the entry stands in the queue, as far as we know
	asked  bool      // it may stand there
	turn   int64
	gone   bool
}

// A waiter gets one turn, unless it leaves before.
type waiter struct {
	turn chan turn
	at   *list.Element
}

// A turn is a hold, an error, or with neither the driver's place.
type turn struct {
	h   *hold
	err error
}

const (
	maxReaders  = 256 // that one bid is for
	fastestPoll = 20 * time.Millisecond
	slowestPoll = 250 * time.Millisecond
	deaf        = 8 // so many polls without a push are no accident any more
)

func (rm *room) call() {
	select {
	case rm.wake <- struct{}{}:
	default:
	}
}

// wait takes a lock after those who came before. contended tells whether it had to wait.
func (c *core) wait(ctx context.Context, t *target, o *Options) (h *hold, contended bool, err error) {
	rm, w, first := c.enter(t, o)
	if first {
		return c.drive(ctx, rm, w, o)
	}
	select {
	case got := <-w.turn:
		if got.h == nil && got.err == nil {
			h, _, err = c.drive(ctx, rm, w, o)
			return h, true, err
		}
		return got.h, true, got.err
	case <-ctx.Done():
		err = notAcquired(end(ctx))
	case <-c.closed:
		err = ErrClosed
	}
	c.exit(rm, w)
	return nil, true, err
}

func (c *core) enter(t *target, o *Options) (rm *room, w *waiter, first bool) {
	key := roomKey{t.record(), t.mode, t.places, o.Lease, o.Label, o.Replicas, o.ReplicaTimeout, ""}
	if o.StrictFIFO {
		key.solo = c.owner()
	}
	w = &waiter{turn: make(chan turn, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	rm = c.rooms[key]
	if rm == nil {
		entry := string(t.mode) + ":" + c.process + ":" + strconv.FormatInt(c.count.Add(1), 36)
		rm = &room{c: c, key: key, t: *t, entry: entry, wake: make(chan struct{}, 1)}
		c.rooms[key], c.entries[entry] = rm, rm
	}
	w.at = rm.line.PushBack(w)
	return rm, w, rm.line.Len() == 1
}

// drive takes the lock for the driver w, and for readers in its room.
func (c *core) drive(ctx context.Context, rm *room, w *waiter, o *Options) (h *hold, contended bool, err error) {
	t := &rm.t
	var pause time.Duration
	var failing time.Time // since when Redis has not answered
	for polls := 0; ; polls++ {
		c.mu.Lock()
		queued, since := rm.queued, rm.turn
		c.mu.Unlock()
		if queued {
			contended = true
			if polls == deaf && !c.push() {
				c.noteDeaf(o.Logger)
			}
			called, err := c.doze(ctx, rm, pause, polls)
			if err != nil {
				c.exit(rm, w)
				return nil, contended, err
			}
			if called {
				polls = 0
			}
		}
		b := o.bid()
		b.entry, b.turn = rm.entry, since
		var party []*waiter
		party, b.more = c.party(rm)
		for range party {
			b.owners = append(b.owners, c.owner())
		}
		r, err := c.acquire(ctx, rm, t, o, b)
		switch {
		case err != nil && (ctx.Err() != nil || c.isClosed()):
			c.exit(rm, w)
			return nil, contended, c.gaveUp(ctx)
		case err != nil:
			if failing.IsZero() {
				failing = time.Now()
			}
			if !queued || final(err) || time.Since(failing) > o.Lease {
				c.fail(rm, w, err)
				return nil, contended, err
			}
			pause = min(max(2*pause, 2*fastestPoll), 2*slowestPoll)
		case r.what == "granted":
			h, err := c.share(ctx, rm, party, o, b.owners, r)
			return h, contended, err
		case r.what == "done":
			c.fail(rm, w, errDone)
			return nil, contended, errDone
		case r.what == "busy":
			failing, pause = time.Time{}, millis(r.n[3])
			c.mu.Lock()
			rm.queued, rm.turn = true, r.n[2]
			c.mu.Unlock()
		default: // "gone": an owner's name is used once, so this is for nobody
			err := unavailable(fmt.Errorf("unexpected answer %q", r.what))
			c.fail(rm, w, err)
			return nil, contended, err
		}
	}
}

func (c *core) gaveUp(ctx context.Context) error {
	if ctx.Err() != nil {
		return notAcquired(end(ctx))
	}
	return ErrClosed
}

// doze waits until it is time to ask again. called tells that there was news.
func (c *core) doze(ctx context.Context, rm *room, pause time.Duration, polls int) (called bool, err error) {
	if pause == 0 {
		pause = time.Second // the entry was put back in the queue when we got the lock
	}
	if !c.push() { // as little as 20 ms, since nobody will call us
		pause = min(pause, min(fastestPoll<<min(polls, 8), slowestPoll))
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-rm.wake:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, notAcquired(end(ctx))
	case <-c.closed:
		return false, ErrClosed
	}
}

// party returns those the next bid is for, the driver and further readers, and
// whether there are more. News from before the bid is no news any more.
func (c *core) party(rm *room) (party []*waiter, more bool) {
	select {
	case <-rm.wake:
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	rm.asked = true
	most := 1
	if rm.t.mode == read {
		most = maxReaders
	}
	for e := rm.line.Front(); e != nil && len(party) < most; e = e.Next() {
		party = append(party, e.Value.(*waiter))
	}
	return party, rm.line.Len() > len(party)
}

// share hands out what was granted to the party, of which the first is the
// caller, and makes the next in line the driver.
func (c *core) share(ctx context.Context, rm *room, party []*waiter, o *Options, owners []string, r reply) (*hold, error) {
	c.mu.Lock()
	rm.turn = r.n[2]
	rm.queued, rm.asked = rm.turn > 0, rm.turn > 0
	here := make([]bool, len(party))
	for i, w := range party {
		if here[i] = w.at != nil; here[i] {
			rm.line.Remove(w.at)
			w.at = nil
		}
	}
	c.next(rm)
	c.mu.Unlock()

	own, err := c.accept(ctx, &rm.t, o, owners[0], r)
	for i, w := range party[1:] {
		if !here[i+1] {
			c.abandon(&rm.t, o, owners[i+1:i+2])
			continue
		}
		h, err := c.accept(ctx, &rm.t, o, owners[i+1], r)
		w.turn <- turn{h, err}
	}
	return own, err
}

// exit takes a waiter that gives up out of its room.
func (c *core) exit(rm *room, w *waiter) {
	c.mu.Lock()
	if w.at != nil {
		driver := rm.line.Front() == w.at
		rm.line.Remove(w.at)
		w.at = nil
		if driver {
			c.next(rm)
		}
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	// It has been taken out with a share or an error, which may be on its way.
	if got := <-w.turn; got.h != nil {
		c.background(func(ctx context.Context) error { return c.giveBack(ctx, got.h, 0) })
	}
}

// next makes the first in line the driver, or ends an empty room. The caller
// holds core.mu.
func (c *core) next(rm *room) {
	if front := rm.line.Front(); front != nil {
		front.Value.(*waiter).turn <- turn{}
		return
	}
	rm.gone = true
	delete(c.rooms, rm.key)
	delete(c.entries, rm.entry)
	if rm.asked {
		c.unqueue(rm)
	}
}

// unqueue takes the entry of a room that is gone out of the queue. The caller
// holds core.mu.
func (c *core) unqueue(rm *room) {
	if !rm.gone {
		return
	}
	until := time.Now().Add(3 * time.Second) // then the others do not count us as alive
	c.start(func(ctx context.Context) error {
		return c.insist(ctx, until, func(ctx context.Context) error { return c.store.leave(ctx, &rm.t, rm.entry) })
	})
}

// fail ends the room with an error for all who wait in it: each for itself would
// only find out the same, one after the other.
func (c *core) fail(rm *room, driver *waiter, err error) {
	c.mu.Lock()
	for e := rm.line.Front(); e != nil; e = rm.line.Front() {
		w := rm.line.Remove(e).(*waiter)
		w.at = nil
		if w != driver {
			w.turn <- turn{err: err}
		}
	}
	if errors.Is(err, ErrConflict) {
		rm.asked = false
	}
	c.next(rm)
	c.mu.Unlock()
}
