package lock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
)

// A Locker takes locks for one process. It keeps one subscription per Redis
// client, one goroutine that renews all its leases, and no state for a lock that
// is not in use. It may be used concurrently. Without Redis it has no subscription.
type Locker struct {
	shared *locker  // shared with the Lockers that With makes
	o      *Options // with the defaults filled in
	err    error    // why New would refuse the options; nil: it would not
}

// New returns a Locker that keeps its locks in rdb, which stays open when the Locker
// is closed. New does not wait for Redis. Its error matches ErrConfig.
//
// With an untyped nil rdb the Locker keeps its locks in this process, and shares them with all
// such Lockers of the same Options.Prefix; the package comment says more, under Without Redis.
// A nil pointer of a client's type is an error.
func New(rdb redis.UniversalClient, o Options) (*Locker, error) {
	if rdb != nil {
		if err := redisconn.CheckClient(rdb, redisconn.Scripts); err != nil {
			return nil, badConfig("%v", err)
		}
	}
	o, err := o.withDefaults(rdb == nil)
	if err != nil {
		return nil, err
	}
	return &Locker{shared: newLocker(rdb, o), o: &o}, nil
}

// With returns a Locker with the options o that shares everything else with l: Close of
// one closes both. If New would refuse o, every call that uses the options fails with
// ErrConfig.
func (l *Locker) With(o Options) *Locker {
	o, err := o.withDefaults(l.shared.rdb == nil)
	return &Locker{l.shared, &o, err}
}

// Lock takes the lock name, after the callers already waiting. It blocks until it has the
// lock, fails or ctx ends, whatever Redis does. The end of ctx does not end the lease; the
// lease has its own context, with the values of ctx.
//
// The error matches ErrNotAcquired and the context's cause if ctx has ended;
// ErrUnavailable if Redis does not reply (a caller that is already in the queue first
// goes on waiting for one Options.Lease); ErrDeadlock if ctx comes from a lease on
// name; or ErrConflict, ErrNotReplicated, ErrConfig or ErrClosed.
func (l *Locker) Lock(ctx context.Context, name string) (*Lease, error) {
	return l.lock(ctx, keys.Mutex, name, exclusive, true)
}

// TryLock takes the lock name if nobody has it and nobody waits for it. Otherwise
// the error is a *HeldError, which matches ErrNotAcquired. It is one round trip.
func (l *Locker) TryLock(ctx context.Context, name string) (*Lease, error) {
	return l.lock(ctx, keys.Mutex, name, exclusive, false)
}

// Do runs fn while it holds the lock name, and releases the lock when fn has
// returned, panicked or called runtime.Goexit. It returns fn's error, joined with
// an error that matches ErrLost if the lease was lost while fn ran (another holder may
// have run at the same time), or with ErrNotHeld if fn has released the lease itself.
// If the lock cannot be taken, fn does not run and Do returns the error of Lock. So
// ErrUnavailable means that fn has not run: an Unlock that Redis does not confirm is logged,
// goes on in the background, and is no error.
//
// fn gets the lease's context, which here also ends with ctx. After ctx has ended,
// the lease is still renewed for one Options.Lease, so that fn can clean up under the lock.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context, lease *Lease) error) error {
	lease, err := l.Lock(ctx, name)
	if err != nil {
		return err
	}
	return lease.do(ctx, 0, fn)
}

// do runs fn under the lease and releases the lease. If fn succeeds, its work counts
// as done for the time keep (Once).
func (s *Lease) do(ctx context.Context, keep time.Duration, fn func(context.Context, *Lease) error) (err error) {
	inner, cancel := context.WithCancelCause(s.Context())
	deadline, bounded := ctx.Deadline()
	stop := context.AfterFunc(ctx, func() {
		if !bounded || !errors.Is(ctx.Err(), context.DeadlineExceeded) { // else inner ends by its own deadline, with that error
			cancel(context.Cause(ctx))
		}
		s.windDown()
	})
	returned := false
	defer func() { // also when fn panics or calls Goexit, which go on
		stop()
		cancel(nil)
		if err != nil || !returned {
			keep = 0
		}
		failure := s.unlock(ctx, keep)
		if keep == 0 && errors.Is(failure, ErrUnavailable) {
			s.locker.logUnlock(s.acq.grants[0], failure) // it must not look as if fn had not run
		} else if failure != nil {
			err = errors.Join(err, failure)
		}
	}()
	if bounded {
		var done context.CancelFunc
		inner, done = context.WithDeadline(inner, deadline)
		defer done()
	}
	err = fn(inner, s)
	returned = true
	return err
}

// Close releases all held locks, ends all waiting calls with ErrClosed and stops the
// Locker's goroutines. If Redis does not reply, Close takes up to 1 s and the leases
// expire by themselves. It always returns nil.
func (l *Locker) Close() error {
	l.shared.close()
	return nil
}

// lock takes a lock of any kind.
func (l *Locker) lock(ctx context.Context, kind keys.LockKind, name string, m mode, wait bool) (*Lease, error) {
	t, err := l.target(kind, name, m)
	if err != nil {
		return nil, err
	}
	return l.shared.lock(ctx, &t, l.o, wait)
}

// target returns the target for a lock, or an error if its name or the options are invalid.
func (l *Locker) target(kind keys.LockKind, name string, m mode) (target, error) {
	if err := checkName(name); err != nil {
		return target{}, err
	}
	return newTarget(l.o.Prefix, kind, name, m), l.err
}
