package lock

import (
	"context"
	"errors"
	"time"
)

const (
	fastestPoll = 20 * time.Millisecond
	slowestPoll = 250 * time.Millisecond
	silentPolls = 8 // so many polls in a row without messages are worth a log line
)

// lead takes the lock for the leader w of a room, and for readers behind it. Each turn of
// its loop is one bid; once the room's entry stands in the queue, a wait comes before it.
//
// Redis may fail while we wait. A leader that has no place in the queue yet gives up at
// once: its caller is told that Redis is unavailable. One that stands in the queue goes
// on for the length of a lease, as its place may still be there, and so may a grant to
// it. Either way everybody in the room learns of it, see fail.
func (l *locker) lead(ctx context.Context, room *waitRoom, w *waiter, o *Options) (g *grant, contended bool, err error) {
	var failing time.Time // since when Redis has not answered
	for {
		ticket, due := l.standing(room)
		if ticket > 0 {
			contended = true
			// A message that came since the last bid is still in room.wake: then this
			// returns at once.
			got, err := l.waitForTurn(ctx, room, w, time.Until(due))
			if err != nil {
				l.exit(room, w)
			}
			if got != nil || err != nil {
				return got, contended, err
			}
		}
		b, readers := l.roomBid(room, w, o, ticket)
		if readers == nil { // the lock has been passed on to it
			room.call() // a message that it has taken off is for the next leader
			return (<-w.handed).grant, true, nil
		}
		r, err := l.ask(ctx, &room.target, o, b)
		switch {
		case err != nil && (ctx.Err() != nil || l.isClosed()):
			room.call() // what the bid would have found is the next leader's to find
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
		default: // "gone" cannot be: an owner's name is used once
			err = unavailable(errors.New("unexpected answer to a bid"))
		}
		l.fail(room, w, err)
		return nil, contended, err
	}
}

// askAgain notes that the leader's bid is over, and after how long the next one is due, by
// whoever leads then: it comes before if there is a message. Where none arrive the leader
// polls, and askAgain returns how often it has in a row. The caller holds mu.
//
// A leader that began to wait anew would never bid in a room whose callers leave sooner. But
// a lease that ends is found by a bid alone, and a process that makes none counts as dead.
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

// waitForTurn waits until the lock is passed on to the leader w, there was a message, or it
// is time to bid again.
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

// roomBid makes the next bid of a room, and returns for whom it is: for the leader w,
// or for the leader and the readers behind it, an owner for each. It is for nobody if the
// lock has been passed on to the leader.
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

// handOut gives what was granted to those the bid was for, of whom the first is the
// caller, and appoints the next leader. A reader may leave at any moment:
//
//  1. before the line is changed here: it is no longer in the line, its owner is refused
//  2. after that, before its grant is handed to it: exit waits for the grant, and gives
//     it back
//
// The next leader is appointed before the grants are accepted, which may take a round
// trip: it need not wait for that.
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

	own, err := l.accept(ctx, &room.target, o, owners[0], got)
	for i := 1; i < len(readers); i++ {
		if !here[i] {
			l.refuse(&room.target, o.Lease, owners[i:i+1])
			continue
		}
		g, err := l.accept(ctx, &room.target, readers[i].o, owners[i], got)
		readers[i].handed <- handed{g, err}
	}
	return own, err
}
