package lock

import (
	"context"
	"errors"
	"time"
)

const (
	fastestPoll = 20 * time.Millisecond
	slowestPoll = 250 * time.Millisecond
	silentPolls = 8 // polls in a row without messages before a log line
)

// lead takes the lock for the leader w of a room, and for readers behind it. Each turn of
// its loop makes one bid; once the room's entry is in the queue, lead waits before each bid.
//
// Redis may fail meanwhile. A leader without a place in the queue gives up at once, with
// ErrUnavailable. A leader with a place goes on for one Options.Lease, since its place may
// still be there, and even a grant to it. When it gives up, everybody in the room gets the
// error, see fail.
func (l *locker) lead(ctx context.Context, room *waitRoom, w *waiter, o *Options) (g *grant, contended bool, err error) {
	var failing time.Time // since when Redis has not answered
	for {
		ticket, due := l.standing(room)
		if ticket > 0 {
			contended = true
			// If a message came since the last bid, it is still in room.wake, and
			// waitForTurn returns at once.
			got, err := l.waitForTurn(ctx, room, w, time.Until(due))
			if err != nil {
				l.exit(room, w)
			}
			if got != nil || err != nil {
				return got, contended, err
			}
		}
		b, readers := l.roomBid(room, w, o, ticket)
		if readers == nil { // the lock has been passed on to w
			room.call() // the message that roomBid may have taken is for the next leader
			return (<-w.handed).grant, true, nil
		}
		r, err := l.ask(ctx, &room.target, o, b)
		switch {
		case err != nil && (ctx.Err() != nil || l.isClosed()):
			room.call() // the next leader bids for what this bid would have found
			l.exit(room, w)
			return nil, contended, l.gaveUp(ctx)
		case err != nil:
			if failing.IsZero() {
				failing = time.Now()
			}
			if ticket == 0 || final(err) || time.Since(failing) > o.Lease {
				l.fail(room, w, err)
				return nil, contended, err
			}
			l.mu.Lock()
			l.askAgain(room, 2*slowestPoll)
			l.mu.Unlock()
			continue
		}
		switch r.answer {
		case answerGranted:
			g, err := l.handOut(ctx, room, readers, o, b.owners, r.granted)
			return g, contended, err
		case answerBusy:
			failing = time.Time{}
			l.mu.Lock()
			room.ticket = r.busy.ticket
			if w.handed == nil {
				w.handed = make(chan handed, 1)
			}
			polls := l.askAgain(room, r.busy.askAgain)
			l.mu.Unlock()
			if polls == silentPolls {
				l.logNoMessages(o.Logger)
			}
			continue
		case answerDone:
			err = errDone
		default: // "gone" cannot happen: an owner's name is used once
			err = unavailable(errors.New("unexpected answer to a bid"))
		}
		l.fail(room, w, err)
		return nil, contended, err
	}
}

// askAgain notes that the leader's bid is over and when the next one is due: after the given
// time, or when a message comes. While no messages arrive, the leader polls: askAgain then
// shortens the time, and returns the number of polls in a row. The caller holds mu.
//
// The time is the room's, not the leader's. If each leader began to wait anew, a room whose
// callers leave soon would never bid. But only a bid finds a lease that has ended, and a
// process that makes no bids counts as dead.
func (l *locker) askAgain(room *waitRoom, after time.Duration) (polls int) {
	room.bids = false
	if room.polls++; l.hearsLocked() {
		room.polls = 0
	} else {
		after = min(after, fastestPoll<<min(room.polls, 8), slowestPoll)
	}
	room.due = time.Now().Add(after)
	return room.polls
}

func (l *locker) gaveUp(ctx context.Context) error {
	if ctx.Err() != nil {
		return notAcquired(ctx)
	}
	return ErrClosed
}

// waitForTurn waits until the lock is passed on to the leader w, there is a message, or
// pause is over. It fails if ctx ends or the locker is closed.
func (l *locker) waitForTurn(ctx context.Context, room *waitRoom, w *waiter, pause time.Duration) (*grant, error) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case got := <-w.handed:
		return got.grant, nil
	case <-room.wake:
		return nil, nil
	case <-timer.C:
		return nil, nil
	case <-ctx.Done():
		return nil, notAcquired(ctx)
	case <-l.closed:
		return nil, ErrClosed
	}
}

// roomBid returns the next bid of a room, and the waiters that it is for, with one owner
// each: the leader w, or w and the readers behind it. There are no waiters if the lock has
// been passed on to w.
func (l *locker) roomBid(room *waitRoom, w *waiter, o *Options, ticket int64) (bid, []*waiter) {
	select {
	case <-room.wake: // this bid finds what the message was about
	default:
	}
	b := o.bid()
	b.entry, b.ticket = room.entry, ticket
	most := 1
	if room.target.mode == read {
		most = maxReaders
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.place == nil {
		return bid{}, nil
	}
	room.asked, room.bids = true, true
	readers := room.bidders[:0]
	for e := room.line.Front(); e != nil && len(readers) < most; e = e.Next() {
		readers = append(readers, e.Value.(*waiter))
		b.owners = append(b.owners, l.newOwner())
	}
	b.more = room.line.Len() > len(readers)
	return b, readers
}

// handOut gives the granted lock to the waiters of the bid, the first of which is the
// caller, and appoints the next leader. A reader may leave at any moment:
//
//  1. before handOut changes the line: it is no longer in the line, and handOut refuses
//     its owner
//  2. after that, before handOut hands it its grant: exit waits for the grant, and
//     releases it
//
// handOut appoints the next leader first, and hands the others theirs before its own, since
// accepting a grant may take a round trip, or seconds.
func (l *locker) handOut(ctx context.Context, room *waitRoom, readers []*waiter, o *Options, owners []string, got granted) (*grant, error) {
	l.mu.Lock()
	room.ticket = got.ticket
	if room.asked = got.ticket > 0; room.asked { // the entry was put back
		l.askAgain(room, time.Second)
	}
	here := make([]bool, len(readers))
	for i, w := range readers {
		if here[i] = w.place != nil; here[i] {
			room.remove(w)
		}
	}
	l.appointLeader(room)
	l.mu.Unlock()

	for i := 1; i < len(readers); i++ {
		if !here[i] {
			l.refuse(&room.target, o.Lease, owners[i:i+1])
			continue
		}
		g, err := l.admit(&room.target, readers[i].o, owners[i], got)
		if err != nil {
			l.releaseLater(g)
			g = nil
		}
		readers[i].handed <- handed{g, err}
	}
	return l.accept(ctx, &room.target, o, owners[0], got)
}
