package lock

import (
	"context"

	"github.com/levee-go/levee/internal/keys"
)

// ForceUnlock takes the lock name from its holder, and grants it to the first waiter in the
// queue, if there is one. It is for operators: the holder may be a process that is stuck, one
// that died with a long lease, or a Token that nobody attaches. ForceUnlock reports whether
// somebody held the lock. A lock that is free, or has been granted to a waiter that has not
// claimed it yet, stays as it is.
//
// ForceUnlock does not stop the old holder. The old holder's process gets a message, reads
// Redis, and ends the lease with ErrLost and ErrTakenOver, within a moment if it runs. If the
// message is lost, or comes before the old holder's Lock or Attach has returned, the process
// notices at its next renewal, after a third of Options.Lease at most; without renewals, at
// Check, Unlock or the end of the lease. Until then both holders work at the same time, and
// only the fence keeps the old one out: the new holder's fence is larger than all that the old
// holder has or can still get. The old holder's Unlock returns ErrLost (or, if it passes the
// lock on within its process, the Unlock of the caller that got it does), and Attach and
// Release of its Token return ErrNotHeld; none of them touches the new holder's lock. A lease
// of LockAll is lost as a whole, and its Unlock releases its other locks.
//
// If Redis does not reply, the error matches ErrUnavailable, and the lock may or may not have
// been taken away: call Inspect before trying again, since another may hold it by then.
// ForceUnlock takes two round trips, more if the lock goes from one holder to the next
// meanwhile. If ctx has ended, the error also matches the context's cause.
func (l *Locker) ForceUnlock(ctx context.Context, name string) (bool, error) {
	return l.force(ctx, keys.Mutex, name, exclusive)
}

// ForceUnlock takes this lock from the writer or from all readers, as [Locker.ForceUnlock]
// does. Readers after it have a larger fence than readers before it.
func (w *RW) ForceUnlock(ctx context.Context) (bool, error) {
	return w.l.force(ctx, keys.ReadWrite, w.name, write)
}

// ForceUnlock takes all permits from their holders, as [Locker.ForceUnlock] does.
func (s *Semaphore) ForceUnlock(ctx context.Context) (bool, error) {
	t, err := s.target()
	if err != nil {
		return false, err
	}
	return s.l.shared.force(ctx, &t)
}

// ForceUnlock takes the stripe with this number from its holder, as [Locker.ForceUnlock] does.
func (s *Striped) ForceUnlock(ctx context.Context, stripe int) (bool, error) {
	t, err := s.numbered(stripe)
	if err != nil {
		return false, err
	}
	return s.l.shared.force(ctx, &t)
}

func (l *Locker) force(ctx context.Context, kind keys.LockKind, name string, m mode) (bool, error) {
	t, err := l.target(kind, name, m)
	if err != nil {
		return false, err
	}
	return l.shared.force(ctx, &t)
}

// force takes a lock from its holders:
//
//  1. it runs the script without a fence; the reply is the lock's last fence: 7
//  2. it runs the script with 7, which takes the lock from its holders
//
// If another has got the lock between 1 and 2, the reply to 2 is the new fence, and force
// repeats 2 with that. So a copy of 2 that is repeated or delayed cannot take the lock from
// a later holder.
func (l *locker) force(ctx context.Context, t *target) (bool, error) {
	var last int64
	for {
		what, fence, err := l.store.force(ctx, t, last)
		if err != nil {
			return false, err
		}
		if what != answerHeld {
			return what == answerForced, nil
		}
		last = fence
	}
}
