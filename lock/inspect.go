package lock

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/keys"
)

// Info is the state of a lock at the moment when Inspect read it.
type Info struct {
	// Held reports whether the lock is taken. If Holders is 0, the lock has been granted to
	// the first waiter in the queue, which claims it within a moment or loses it after 2 s.
	Held      bool
	Holders   int           // 1, or the number of readers, or of permits taken
	Fence     int64         // of the last grant by Redis, 0: none; if passed on within a process, up to 15 more
	Remaining time.Duration // until the lease ends, or the first of several, unless it is renewed
	Label     string        // Options.Label of the holder; readers and permits have none
	Waiting   int           // the length of the queue: one for each waiting process
	Longest   time.Duration // how long the first waiter in the queue whose process lives has waited
	Done      time.Duration // how long the work of Once still counts as done
}

// Inspect returns the state of the lock that Lock(name) takes, for people to look at. It
// changes nothing and takes one round trip. The result may be out of date when it arrives.
//
// RW, Semaphore and Striped have an Inspect of their own.
func (l *Locker) Inspect(ctx context.Context, name string) (Info, error) {
	return l.inspect(ctx, keys.Mutex, name, exclusive)
}

// InspectOnce returns the state of the work of Once(name), as [Locker.Inspect] does: a
// caller does it now (Held), it is done (Done), or neither, and the next Once does it.
func (l *Locker) InspectOnce(ctx context.Context, name string) (Info, error) {
	return l.inspect(ctx, keys.Once, name, once)
}

// Inspect returns the state of this lock, as [Locker.Inspect] does. A writer counts as one
// holder, as a single reader does; readers have the Fence of the last writer.
func (w *RW) Inspect(ctx context.Context) (Info, error) {
	return w.l.inspect(ctx, keys.ReadWrite, w.name, write)
}

// Inspect returns the state of this semaphore, as [Locker.Inspect] does. Holders counts all
// permits that are taken, also by callers with another n.
func (s *Semaphore) Inspect(ctx context.Context) (Info, error) {
	t, err := s.target()
	if err != nil {
		return Info{}, err
	}
	return s.l.shared.store.inspect(ctx, &t)
}

// Inspect returns the state of the stripe with this number, as [Locker.Inspect] does.
func (s *Striped) Inspect(ctx context.Context, stripe int) (Info, error) {
	t, err := s.numbered(stripe)
	if err != nil {
		return Info{}, err
	}
	return s.l.shared.store.inspect(ctx, &t)
}

// inspect returns the state of a lock of a kind.
func (l *Locker) inspect(ctx context.Context, kind keys.LockKind, name string, m mode) (Info, error) {
	t, err := l.target(kind, name, m)
	if err != nil {
		return Info{}, err
	}
	return l.shared.store.inspect(ctx, &t)
}
