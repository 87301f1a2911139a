package lock

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/keys"
)

// Info is the state of a lock at a moment that has passed.
type Info struct {
	// Held: somebody has the lock. With Holders 0 it is on its way from one holder to the
	// next: it has been granted to the first in the queue, who takes it up within a moment,
	// or is passed over after two seconds.
	Held      bool
	Holders   int           // 1, or how many readers, or how many permits are taken
	Fence     int64         // of the last grant by Redis, 0: none; if passed on within a process, up to 15 more
	Remaining time.Duration // until the lease ends, of several the first, unless it is renewed
	Label     string        // Options.Label of the holder; readers and permits have none
	Waiting   int           // the length of the queue: one for each waiting process
	Longest   time.Duration // for how long the first in the queue whose process lives has waited there
	Done      time.Duration // of Once: for how long the work still counts as done
}

// Inspect describes the lock that Lock(name) takes, for people to look at. It changes
// nothing and is one round trip. Its answer may be out of date when it arrives.
//
// RW, Semaphore and Striped have an Inspect of their own.
func (l *Locker) Inspect(ctx context.Context, name string) (Info, error) {
	return l.inspect(ctx, keys.Mutex, name, exclusive)
}

// InspectOnce is [Locker.Inspect] for the work of Once(name): somebody does it now
// (Held), it is done (Done), or neither, and the next Once does it.
func (l *Locker) InspectOnce(ctx context.Context, name string) (Info, error) {
	return l.inspect(ctx, keys.Once, name, once)
}

// Inspect is [Locker.Inspect] for this lock. A writer and a single reader both are one
// holder; the Fence of a reader is that of the writer before it.
func (w *RW) Inspect(ctx context.Context) (Info, error) {
	return w.l.inspect(ctx, keys.ReadWrite, w.name, write)
}

// Inspect is [Locker.Inspect] for this semaphore. Holders counts all permits that are
// taken, also by callers with another n.
func (s *Semaphore) Inspect(ctx context.Context) (Info, error) {
	t, err := s.target()
	if err != nil {
		return Info{}, err
	}
	return s.l.shared.redis.inspect(ctx, &t)
}

// Inspect is [Locker.Inspect] for the stripe of this number.
func (s *Striped) Inspect(ctx context.Context, stripe int) (Info, error) {
	t, err := s.numbered(stripe)
	if err != nil {
		return Info{}, err
	}
	return s.l.shared.redis.inspect(ctx, &t)
}

// inspect describes a lock of a kind.
func (l *Locker) inspect(ctx context.Context, kind keys.LockKind, name string, m mode) (Info, error) {
	t, err := l.target(kind, name, m)
	if err != nil {
		return Info{}, err
	}
	return l.shared.redis.inspect(ctx, &t)
}
