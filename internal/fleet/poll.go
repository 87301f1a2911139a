package fleet

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

const (
	pollEpoch  = 500 * time.Millisecond // between two reads of the clears while messages do not arrive
	epochFresh = time.Second            // how long the result of such a read may be used
	touchEpoch = 30 * time.Second       // between two reads while messages arrive, and again for each touchSize counters
	touchSize  = 1000                   // so that a large hash takes Redis little more time than a small one
)

// errEpoch reports that a value was read but may be from before a Clear.
var errEpoch = errors.New("levee: what was cleared of the cache cannot be read")

// sure waits until the clears are known well enough to judge a value that was just read
// from Redis. It returns an error if they cannot be read, or if ctx or the group ends.
func (e *epoch) sure(ctx context.Context) error {
	if e.heard.Load() || e.read == nil {
		return nil
	}
	asked := time.Now()
	for range 2 { // the read that is under way, and the one after it
		ok, done := e.readSince(asked)
		if ok {
			return nil
		}
		wait.Wake(e.kick)
		select {
		case <-done:
		case <-ctx.Done():
			return wait.Ended(ctx)
		case <-e.closing.Done():
			return errClosed
		}
	}
	if ok, _ := e.readSince(asked); ok {
		return nil
	}
	return errEpoch
}

// afresh waits until all clears from before the call are known, even if their messages are still on
// their way. It returns an error if they cannot be read, or if ctx or the group ends.
func (e *epoch) afresh(ctx context.Context) error {
	if e.read == nil {
		return nil
	}
	asked := time.Now()
	for range 2 { // the read that is under way, and the one after it
		e.mu.Lock()
		if !e.began.Before(asked) {
			e.mu.Unlock()
			return nil
		}
		e.due = time.Time{} // read all counters, and not only those that messages have named
		e.start()
		done := e.done
		e.mu.Unlock()
		wait.Wake(e.kick)
		select {
		case <-done:
		case <-ctx.Done():
			return wait.Ended(ctx)
		case <-e.closing.Done():
			return errClosed
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.began.Before(asked) {
		return errEpoch
	}
	return nil
}

// readSince reports whether the clears are known well enough, or a read of them has begun at
// since or later. If not, the returned channel is closed at the end of the next read.
func (e *epoch) readSince(since time.Time) (bool, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard.Load() || time.Now().Before(e.until) || !e.began.Before(since), e.done
}

// risen handles a message about a Clear.
func (e *epoch) risen() {
	e.change(func() {
		e.clears++
		e.until = time.Time{}
	})
}

// tagsCleared handles a message about a clear of tags. Unlike after a Clear, values are
// still served until the counters have been read, as they were until the message came.
func (e *epoch) tagsCleared(numbers []uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range numbers {
		e.changed[n] = true
	}
	e.start()
	wait.Wake(e.kick)
}

// missed handles a gap in the messages. Each subscription begins with one.
func (e *epoch) missed() { e.change(func() { e.subscribed = true }) }

// setLive handles a change of the link's liveness.
func (e *epoch) setLive(live bool) {
	e.change(func() {
		e.linkLive = live
		e.subscribed = e.subscribed && live // a link that is no longer live opens another connection
	})
}

// failed handles the end of a connection, after which the link subscribes again.
func (e *epoch) failed() { e.change(func() { e.subscribed = false }) }

// change calls note with e.mu held, and has the clears read again before messages are relied on.
func (e *epoch) change(note func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	note()
	e.gaps++
	e.setHeard(false)
	e.start()
	if e.subscribed && e.linkLive {
		wait.Wake(e.kick)
	}
}

// setHeard sets heard. The caller holds e.mu.
func (e *epoch) setHeard(heard bool) {
	if e.heard.Swap(heard) != heard && e.live != nil {
		e.live(heard)
	}
}

// begin starts the first read of the clears.
func (e *epoch) begin() { e.change(func() {}) }

// start starts the reading goroutine. The caller holds e.mu.
func (e *epoch) start() {
	if e.running || e.closing.Err() != nil {
		return
	}
	if e.touch != nil {
		e.touch.Stop() // look makes a new timer; without Stop each Clear would leave one behind
	}
	e.running = true
	e.work.Go(e.follow)
}

// follow reads the clears every pollEpoch, until messages announce their changes.
func (e *epoch) follow() {
	for !e.look() {
		timer := time.NewTimer(pollEpoch)
		select {
		case <-e.kick:
		case <-timer.C:
		case <-e.closing.Done():
		}
		timer.Stop()
	}
}

// look reads the clears and reports whether the reading goroutine may end.
func (e *epoch) look() (enough bool) {
	e.mu.Lock()
	gaps, told, complete, began := e.gaps, e.clears, e.complete, time.Now()
	wanted := slices.Collect(maps.Keys(e.changed))
	clear(e.changed)
	part := e.heard.Load() && len(wanted) > 0 && began.Before(e.due)
	if part { // messages have named all changes: read only those counters
		complete = math.MaxInt64
	}
	e.mu.Unlock()
	present, err := e.read(complete, wanted)
	if err == nil {
		e.learn(present)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.began = began
		if !part && present.complete > e.complete {
			e.complete, e.size = present.complete, len(present.counters)
		}
		if told == e.clears {
			e.until = began.Add(epochFresh)
		}
		e.setHeard(gaps == e.gaps && e.subscribed && e.linkLive)
	} else if len(wanted) > 0 {
		e.setHeard(false)
		e.until = time.Time{}
		for _, n := range wanted {
			e.changed[n] = true
		}
	}
	if !part {
		e.due = began.Add(touchEpoch * time.Duration(1+e.size/touchSize))
	}
	close(e.done)
	e.done = make(chan struct{})
	e.running = (!e.heard.Load() || len(e.changed) > 0) && e.closing.Err() == nil
	if !e.running && e.closing.Err() == nil {
		e.touch = time.AfterFunc(time.Until(e.due), func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.start()
		})
	}
	return !e.running
}

// close waits for the reading goroutine. The context closing must have ended.
func (e *epoch) close() {
	e.mu.Lock()
	if e.touch != nil {
		e.touch.Stop()
	}
	e.mu.Unlock()
	e.work.Wait()
}
