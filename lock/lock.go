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
// client, one goroutine that renews all its leases, and nothing for a lock that
// is not in use. It may be used concurrently.
type Locker struct {
	shared *locker  // with all Lockers made of it by With
	o      *Options // that are checked, and err says what is wrong with them
	err    error
}

// New makes a Locker that keeps its locks in rdb, which stays the caller's. It
// does not wait for Redis. The error matches ErrConfig.
func New(rdb redis.UniversalClient, o Options) (*Locker, error) {
	if err := redisconn.CheckClient(rdb, redisconn.Scripts); err != nil {
		return nil, badConfig("%v", err)
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Locker{shared: newLocker(rdb, o), o: &o}, nil
}

// With returns a Locker with other settings that shares everything else with l: Close
// of one closes both. Options that New would refuse make each of its calls fail with
// ErrConfig.
func (l *Locker) With(o Options) *Locker {
	o, err := o.withDefaults()
	return &Locker{l.shared, &o, err}
}

// Lock takes the lock name, after the callers already waiting. It waits as long as ctx
// lives, and no longer, whatever Redis does. The end of ctx does not end the lease,
// whose own context has the values of ctx.
//
// The error matches ErrNotAcquired and the context's cause when ctx has ended;
// ErrUnavailable when Redis does not answer (a caller that is in the queue already
// goes on waiting for the length of a lease); ErrDeadlock when ctx is that of a lease on
// name; or ErrConflict, ErrNotReplicated, ErrConfig or ErrClosed.
func (l *Locker) Lock(ctx context.Context, name string) (*Lease, error) {
	return l.lock(ctx, keys.Mutex, name, exclusive, true)
}

// TryLock takes the lock name if nobody has it and nobody waits for it. Otherwise
// the error is a *HeldError, which matches ErrNotAcquired. It is one round trip.
func (l *Locker) TryLock(ctx context.Context, name string) (*Lease, error) {
	return l.lock(ctx, keys.Mutex, name, exclusive, false)
}

// Do runs fn while it holds the lock name, and gives the lock back when fn has
// returned, panicked or called runtime.Goexit. It returns fn's error, joined with
// an error that matches ErrLost if the lease was lost while fn ran: then another holder
// may have run at the same time; or with ErrNotHeld if fn has given the lease back itself.
// If the lock cannot be taken, fn does not run and the errors are those of Lock. So
// ErrUnavailable says that fn has not run: an Unlock that Redis does not confirm is logged,
// goes on in the background, and is no error.
//
// The context of fn is that of the lease, and ends with ctx too. When ctx has ended,
// the lease is renewed for the length of one lease more, so that fn can unwind under it.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context, lease *Lease) error) error {
	lease, err := l.Lock(ctx, name)
	if err != nil {
		return err
	}
	return lease.do(ctx, 0, fn)
}

// do runs fn under a lease and gives the lease back. If fn succeeds, its work counts
// as done for keep (once).
func (s *Lease) do(ctx context.Context, keep time.Duration, fn func(context.Context, *Lease) error) (err error) {
	inner, cancel := context.WithCancelCause(s.Context())
	deadline, bounded := ctx.Deadline()
	stop := context.AfterFunc(ctx, func() {
		if !bounded || !errors.Is(ctx.Err(), context.DeadlineExceeded) { // else inner ends by its own deadline, and says so
			cancel(context.Cause(ctx))
		}
		s.windDown()
	})
	returned := false
	defer func() { // also on a panic or Goexit of fn, which go on
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

// Close gives back all locks that are held, ends all waits with ErrClosed and stops the
// Locker's goroutines. If Redis does not answer it takes up to a second, and the leases
// end by themselves.
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

// target is the lock name, which is acceptable, and so are the options, if err is nil.
func (l *Locker) target(kind keys.LockKind, name string, m mode) (target, error) {
	if err := checkName(name); err != nil {
		return target{}, err
	}
	return newTarget(l.o.Prefix, kind, name, m), l.err
}
