package lock

import (
	"context"

	"github.com/levee-go/levee/internal/keys"
)

// An RW is a read-write lock: many readers or one writer hold it. Waiters are served in
// order of arrival, and readers next to each other together, so that readers and writers
// cannot starve each other. Each reader has a lease of its own.
type RW struct {
	l    *Locker
	name string
}

// RW returns the read-write lock name. It is independent of Lock(name).
func (l *Locker) RW(name string) *RW { return &RW{l, name} }

// Lock takes the lock for writing, as [Locker.Lock] does.
func (w *RW) Lock(ctx context.Context) (*Lease, error) {
	return w.l.lock(ctx, keys.ReadWrite, w.name, write, true)
}

// TryLock takes the lock for writing if nobody holds it or waits for it, as [Locker.TryLock] does.
func (w *RW) TryLock(ctx context.Context) (*Lease, error) {
	return w.l.lock(ctx, keys.ReadWrite, w.name, write, false)
}

// RLock takes the lock for reading, after the writers already waiting. Readers share the
// fence of the last writer before them. If ctx comes from a lease on the same lock, even a
// reader's, the error is ErrDeadlock: a writer may be waiting between the two. Otherwise it
// is like [Locker.Lock].
func (w *RW) RLock(ctx context.Context) (*Lease, error) {
	return w.l.lock(ctx, keys.ReadWrite, w.name, read, true)
}

// TryRLock takes the lock for reading if no writer holds it and nobody waits for it.
func (w *RW) TryRLock(ctx context.Context) (*Lease, error) {
	return w.l.lock(ctx, keys.ReadWrite, w.name, read, false)
}
