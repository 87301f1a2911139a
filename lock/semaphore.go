package lock

import (
	"context"

	"github.com/levee-go/levee/internal/keys"
)

const maxPermits = 1 << 20

// A Semaphore is held by up to n callers at a time. Each has a lease of its own, so that
// the permits of a process that dies come back.
type Semaphore struct {
	l    *Locker
	name string
	n    int
}

// Semaphore returns the semaphore name with n permits. Each caller counts against its
// own n: while two sizes are in use, callers with the smaller one wait longer, and those
// behind them with them.
// If n is not from 1 to 1,048,576, its methods fail with ErrConfig.
func (l *Locker) Semaphore(name string, n int) *Semaphore { return &Semaphore{l, name, n} }

// Acquire takes a permit, after the callers already waiting; otherwise it is like
// [Locker.Lock]. A caller may take several permits: it does not get ErrDeadlock when it
// waits for a permit of its own.
func (s *Semaphore) Acquire(ctx context.Context) (*Lease, error) { return s.take(ctx, true) }

// TryAcquire takes a permit if one is free and nobody waits for it, as [Locker.TryLock] does.
func (s *Semaphore) TryAcquire(ctx context.Context) (*Lease, error) { return s.take(ctx, false) }

func (s *Semaphore) take(ctx context.Context, wait bool) (*Lease, error) {
	t, err := s.target()
	if err != nil {
		return nil, err
	}
	return s.l.shared.lock(ctx, &t, s.l.o, wait)
}

func (s *Semaphore) target() (target, error) {
	if s.n < 1 || s.n > maxPermits {
		return target{}, badConfig("a semaphore must have 1 to %d permits, got %d", maxPermits, s.n)
	}
	t, err := s.l.target(keys.Semaphore, s.name, permit)
	t.permits = s.n
	return t, err
}
