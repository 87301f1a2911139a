package lock

import (
	"context"

	"github.com/levee-go/levee/internal/keys"
)

// ForceUnlock takes the lock name away from whoever holds it, and passes it on to the first
// in the queue, if there is one: for an operator whose lock is held by a process that is
// stuck, by one that died with a long lease, or by a Token that nobody attaches. It
// reports whether somebody held the lock. One that is free, or has been granted to a
// waiter who has not taken it up yet, stays as it is.
//
// It does not stop the old holder. Its process gets a message, reads Redis, and ends the
// lease with ErrLost and ErrTakenOver, all within a moment if it runs. If the message is
// lost, or comes before the old holder's Lock or Attach has returned, the next renewal
// tells it, after a third of its Options.Lease at most; without renewals, Check, Unlock
// or the end of its lease do. Until then it works beside the next
// holder, and only a fence keeps it out: those of the next holder are larger than all that
// the old one has or can still get. Its Unlock gives ErrLost (or, if that hands the lock to
// another caller of its process, the Unlock of that one), and Attach and Release of a Token
// ErrNotHeld; none of them touches the next holder's lock. A lease of LockAll is lost as a
// whole, and its Unlock gives its other locks back.
//
// If Redis does not answer, the error matches ErrUnavailable, and the lock may have been
// taken away or not: look with Inspect before trying again, since by then another may
// hold it. ForceUnlock takes two round trips, or more while the lock goes from one
// holder to the next; it fails with the context's cause when ctx has ended.
func (l *Locker) ForceUnlock(ctx context.Context, name string) (bool, error) {
	return l.force(ctx, keys.Mutex, name, exclusive)
}

// ForceUnlock is [Locker.ForceUnlock] for this lock. It takes the lock from the writer or
// from all readers. The fence of readers after it is larger than that of those before.
func (w *RW) ForceUnlock(ctx context.Context) (bool, error) {
	return w.l.force(ctx, keys.ReadWrite, w.name, write)
}

// ForceUnlock is [Locker.ForceUnlock] for this semaphore. It takes all permits.
func (s *Semaphore) ForceUnlock(ctx context.Context) (bool, error) {
	t, err := s.target()
	if err != nil {
		return false, err
	}
	return s.l.shared.force(ctx, &t)
}

// ForceUnlock is [Locker.ForceUnlock] for the stripe of this number.
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

// force takes a lock from those who hold it:
//
//  1. it asks with no fence, and is told the lock's last one: 7
//  2. it asks with 7, and the lock is taken from its holder
//
// If another has got the lock between 1 and 2, 2 says its fence, and is done again with
// that. So a copy of 2 that is repeated, or held up on its way, cannot take the lock from
// a holder who got it afterwards.
func (l *locker) force(ctx context.Context, t *target) (bool, error) {
	var last int64
	for {
		what, fence, err := l.redis.force(ctx, t, last)
		if err != nil {
			return false, err
		}
		if what != answerHeld {
			return what == answerForced, nil
		}
		last = fence
	}
}
