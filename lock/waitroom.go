package lock

import (
	"container/list"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// Waiting
//
// A process has one entry in the queue of a lock, however many of its goroutines wait for
// the lock. They wait in a wait room, in the order in which they came. The first of them,
// the leader, acts for all:
//
//  1. It makes a bid. If the lock is taken, that puts the room's entry in the queue.
//  2. It waits for the message that the entry has been granted the lock, or until the next
//     bid is due. If it leaves before, the next leader waits on until then.
//  3. It bids again: that claims a granted lock, tells the others that this process is
//     alive, and finds a grant whose message was lost. If the lock is still taken, it goes
//     on with 2.
//
// A holder of this process may also pass the lock on to the leader (cohort.go). When the
// leader has the lock or gives up, the next in line becomes the leader. The waiting callers'
// goroutines do all this; there are no others.
//
// An entry belongs to one room. When the room is closed, its entry leaves the queue. A
// delayed bid may put the entry back in the queue, which may then be granted the lock. The
// message of that grant comes to hear, which passes the lock on.

// A roomKey is what the waiters of one wait room have in common, so that one bid can be
// for all of them.
type roomKey struct {
	record  string
	mode    mode
	permits int
	lease   time.Duration
	label   string
	confirm redisconn.Confirm
	single  string // with StrictFIFO: a unique name, for a room of its own
}

// A waitRoom is where the callers of one process wait for a lock.
type waitRoom struct {
	key    roomKey
	target target
	entry  string        // in the queue
	opener waiter        // the waiter that opened the room
	wake   chan struct{} // there was a message, or messages may have been missed

	bidders [1]*waiter // roomBid's result if the bid is for one waiter; only the leader uses it

	// Guarded by locker.mu.
	line   list.List // of *waiter; the first is the leader
	bids   bool      // a bid of the leader is in flight
	asked  bool      // the entry may be in the queue
	ticket int64     // the entry's place in the queue, as far as we know; 0: none
	due    time.Time // when the leader is to bid again if there is no message
	polls  int       // bids in a row after which no message could come
}

// A waiter is a caller in a wait room. Unless it leaves before, it gets a grant or an error
// from handed; before that it may be made the leader.
type waiter struct {
	o      *Options
	handed chan handed   // has room for the lead and a grant; nil: the first bid is in flight
	place  *list.Element // in the line; nil when it is no longer there; guarded by locker.mu
}

// A handed is a grant or an error. If it is neither, the waiter is the leader now.
type handed struct {
	grant *grant
	err   error
}

func (h handed) final() bool { return h.grant != nil || h.err != nil }

// roomFor returns the key of the room in which callers without StrictFIFO wait for a lock.
func roomFor(t *target, o *Options) roomKey {
	return roomKey{t.record(), t.mode, t.permits, o.Lease, o.Label, o.confirm(), ""}
}

// maxReaders is how many readers one bid can be for.
const maxReaders = 256

// call makes the leader bid again.
func (r *waitRoom) call() { wait.Wake(r.wake) }

// takeInTurn takes a lock after the callers that came before. contended tells whether it
// had to wait for them.
func (l *locker) takeInTurn(ctx context.Context, t *target, o *Options) (g *grant, contended bool, err error) {
	room, w, first := l.enter(t, o)
	if first {
		return l.lead(ctx, room, w, o)
	}
	select {
	case got := <-w.handed:
		if !got.final() {
			g, _, err = l.lead(ctx, room, w, o)
			return g, true, err
		}
		return got.grant, true, got.err
	case <-ctx.Done():
		err = notAcquired(ctx)
	case <-l.closed:
		err = ErrClosed
	}
	l.exit(room, w)
	return nil, true, err
}

// enter adds a waiter to the room for t and o. If there is no such room, it opens one; then
// the waiter is the leader, and first is true.
func (l *locker) enter(t *target, o *Options) (room *waitRoom, w *waiter, first bool) {
	key := roomFor(t, o)
	if o.StrictFIFO {
		key.single = l.newOwner()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	room = l.rooms[key]
	if room == nil {
		entry := string(t.mode) + ":" + l.process + ":" + strconv.FormatInt(l.entered.Add(1), 36)
		room = &waitRoom{key: key, target: *t, entry: entry, opener: waiter{o: o}, wake: make(chan struct{}, 1), bids: true}
		l.rooms[key], l.entries[entry] = room, room
		room.opener.place = room.line.PushBack(&room.opener)
		return room, &room.opener, true
	}
	w = &waiter{o: o, handed: make(chan handed, 2)}
	w.place = room.line.PushBack(w)
	return room, w, false
}

// exit removes a waiter that gives up from its room, and releases a grant that it still gets.
func (l *locker) exit(room *waitRoom, w *waiter) {
	l.mu.Lock()
	if w.place != nil {
		leads := room.line.Front() == w.place
		room.remove(w)
		if leads {
			l.appointLeader(room)
		}
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	// It was removed from the line, so it is being handed a grant or an error at this moment.
	got := <-w.handed
	for !got.final() {
		got = <-w.handed
	}
	if got.grant != nil {
		l.releaseLater(got.grant)
	}
}

// remove removes a waiter from the line. The caller holds locker.mu.
func (r *waitRoom) remove(w *waiter) {
	r.line.Remove(w.place)
	w.place = nil
}

// appointLeader makes the first in line the leader, or closes an empty room. The
// caller holds mu.
func (l *locker) appointLeader(room *waitRoom) {
	room.bids = false
	if front := room.line.Front(); front != nil {
		front.Value.(*waiter).handed <- handed{}
		return
	}
	delete(l.rooms, room.key)
	delete(l.entries, room.entry)
	if room.asked {
		l.leaveQueue(&room.target, room.entry)
	}
}

// leaveQueue removes the entry of a closed room from the queue, in the background. The
// caller holds mu.
func (l *locker) leaveQueue(t *target, entry string) {
	const counted = 3 * time.Second // after that the other processes count this one as dead
	l.background(insisting(counted, func(ctx context.Context) error { return l.store.leave(ctx, t, entry) }))
}

// fail gives err to all waiters of the room but the leader, and closes the room. Without it
// each would find the same error, one after the other.
func (l *locker) fail(room *waitRoom, leader *waiter, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for front := room.line.Front(); front != nil; front = room.line.Front() {
		w := front.Value.(*waiter)
		room.remove(w)
		if w != leader {
			w.handed <- handed{err: err}
		}
	}
	if errors.Is(err, ErrConflict) { // the key is not ours: there is no queue to leave
		room.asked = false
	}
	l.appointLeader(room)
}

// standing returns the ticket of the room's entry in the queue, and when the next bid is due.
func (l *locker) standing(room *waitRoom) (ticket int64, due time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return room.ticket, room.due
}
