package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// What the errors of this package match, by errors.Is. An error may match
// several: one that gave up also matches the cause of its context's end.
var (
	// ErrNotAcquired: the lock was not taken. [HeldError] says what was in the way.
	ErrNotAcquired = errors.New("lock: not acquired")
	// ErrLost: the lock was held and is no longer, without having been released.
	// The error also matches why: ErrExpired, ErrTakenOver or ErrStateLost.
	ErrLost = errors.New("lock: lost")
	// ErrExpired: the lease has ended, as far as this process can tell.
	ErrExpired = errors.New("lock: lease expired")
	// ErrTakenOver: somebody else has had the lock since, or ForceUnlock has taken it.
	ErrTakenOver = errors.New("lock: taken over by another")
	// ErrStateLost: Redis does not know of the lease: it lost its memory, failed
	// over to a replica that had not heard of it, or evicted or deleted the key.
	ErrStateLost = errors.New("lock: redis has lost the lock's state")
	// ErrNotHeld: this lease or token does not hold the lock, or no longer.
	ErrNotHeld = errors.New("lock: not held")
	// ErrUnavailable: Redis did not answer, or answered with an error. If it carried the
	// command out all the same, that is undone in the background.
	ErrUnavailable = errors.New("lock: redis is unavailable")
	// ErrNotReplicated: fewer replicas than Options.Replicas know of the lock, which was
	// given back.
	ErrNotReplicated = errors.New("lock: not replicated")
	// ErrDeadlock: the caller's context is that of a lease on the same lock: the caller
	// would wait for itself. Locks are told apart by Prefix and name here, not by their Redis:
	// Lockers of two servers whose locks are taken within each other need a Prefix each.
	ErrDeadlock = errors.New("lock: already held by the caller")
	// ErrConflict: a key of the lock holds a value of another kind. It was not changed.
	ErrConflict = errors.New("lock: key is used for something else")
	// ErrBadToken: the text is not a token, or a token of another version.
	ErrBadToken = errors.New("lock: malformed token")
	// ErrConfig: an argument or option is not acceptable; the text says which.
	ErrConfig = errors.New("lock: invalid argument")
	// ErrClosed: the Locker has been closed.
	ErrClosed = errors.New("lock: closed")
)

// A HeldError says that a lock is held by another. It matches ErrNotAcquired.
type HeldError struct {
	Name      string        // of the lock
	Remaining time.Duration // until the holder's lease ends, unless it is renewed
	Waiting   int           // the length of the queue: one for each waiting process
}

// Error says which lock is held, for how long, and how many wait.
func (e *HeldError) Error() string {
	return fmt.Sprintf("lock: %.100q is held for another %v, %d waiting", e.Name, e.Remaining, e.Waiting)
}

// Is makes the error match ErrNotAcquired.
func (e *HeldError) Is(target error) bool { return target == ErrNotAcquired }

// isHeld reports whether err is a HeldError.
func isHeld(err error) bool {
	var held *HeldError
	return errors.As(err, &held)
}

// lossError makes the error of a lease that was lost for cause.
func lossError(cause error) error { return fmt.Errorf("%w: %w", ErrLost, cause) }

// unavailable makes the error for a Redis that failed with cause. Only the text of
// cause is shown: no error of a dependency leaves the package.
func unavailable(cause error) error { return fmt.Errorf("%w: %v", ErrUnavailable, cause) }

// notAcquired makes the error of a caller whose context has ended.
func notAcquired(ctx context.Context) error {
	return fmt.Errorf("%w: %w", ErrNotAcquired, wait.Ended(ctx))
}

func badConfig(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...)
}
