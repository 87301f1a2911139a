package lock

import (
	"context"

	"github.com/levee-go/levee/internal/keys"
)

// An RW is a lock that many readers or one writer hold. Waiters are served in the order
// of their arrival, and readers next to each other together, so that neither side can
// shut out the other. Each reader has a lease of its own.
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

// TryLock takes it for writing if nobody holds it or waits for it.
func (w *RW) TryLock(ctx context.Context) (*Lease, error) {
	return w.l.lock(ctx, keys.ReadWrite, w.name, write, false)
}

// RLock takes the lock for reading, after the writers who wait already. The fence of
// the lease is that of the last writer before it, which readers share. With the context
// of a lease on the same lock, even a reader's, the error is ErrDeadlock: a writer may
// be waiting between the two.
func (w *RW) RLock(ctx context.Context) (*Lease, error) {
	return w.l.lock(ctx, keys.ReadWrite, w.name, read, true)
}

// TryRLock takes it for reading if no writer holds it and nobody waits for it.
func (w *RW) TryRLock(ctx context.Context) (*Lease, error) {
	return w.l.lock(ctx, keys.ReadWrite, w.name, read, false)
}
