package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// The errors of this package match these by errors.Is. An error may match several: the
// error of a call whose context has ended also matches the cause of that end.
var (
	// ErrNotAcquired reports that the lock was not taken. [HeldError] has the details.
	ErrNotAcquired = errors.New("lock: not acquired")
	// ErrLost reports that a lease has ended without being released. The error also
	// matches the reason: ErrExpired, ErrTakenOver, ErrStateLost or, after Close, ErrClosed.
	ErrLost = errors.New("lock: lost")
	// ErrExpired reports that the lease has expired, as far as this process can tell.
	ErrExpired = errors.New("lock: lease expired")
	// ErrTakenOver reports that another has had the lock since, or ForceUnlock took it.
	ErrTakenOver = errors.New("lock: taken over by another")
	// ErrStateLost reports that Redis does not know the lease: it lost its data, failed
	// over to a replica without the lease, or evicted or deleted the key.
	ErrStateLost = errors.New("lock: redis has lost the lock's state")
	// ErrNotHeld reports that this lease or token does not hold the lock, or no longer.
	ErrNotHeld = errors.New("lock: not held")
	// ErrUnavailable reports that Redis did not reply, or replied with an error. If a call
	// was to take a lock and Redis granted it all the same, it is released in the background.
	ErrUnavailable = errors.New("lock: redis is unavailable")
	// ErrNotReplicated reports that fewer replicas than Options.Replicas confirmed the lock,
	// or that a disk was too slow for Options.Fsync. A lock just taken is released.
	ErrNotReplicated = errors.New("lock: not replicated")
	// ErrDeadlock reports that the caller's context comes from a lease on the same lock: the
	// caller would wait for itself. Here locks are compared by Prefix and name, not by server:
	// Lockers of two servers whose locks are nested need different Prefixes.
	ErrDeadlock = errors.New("lock: already held by the caller")
	// ErrConflict reports that a key of the lock holds a value of another type, which stays.
	ErrConflict = errors.New("lock: key is used for something else")
	// ErrBadToken reports that a text is not a token, or a token of another version.
	ErrBadToken = errors.New("lock: malformed token")
	// ErrConfig reports an invalid argument or option, and names it.
	ErrConfig = errors.New("lock: invalid argument")
	// ErrClosed reports that the Locker has been closed.
	ErrClosed = errors.New("lock: closed")
)

// A HeldError reports that another holder has the lock. It matches ErrNotAcquired.
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

// lossError returns the error of a lease that was lost because of cause.
func lossError(cause error) error { return fmt.Errorf("%w: %w", ErrLost, cause) }

// unavailable returns the error of a call to Redis that failed with cause. It contains only
// the text of cause: no error of a dependency leaves the package.
func unavailable(cause error) error { return fmt.Errorf("%w: %v", ErrUnavailable, cause) }

// notAcquired returns the error of a caller whose context has ended.
func notAcquired(ctx context.Context) error {
	return fmt.Errorf("%w: %w", ErrNotAcquired, wait.Ended(ctx))
}

func badConfig(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...)
}
