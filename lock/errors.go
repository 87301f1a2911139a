package lock

import (
	"errors"
	"fmt"
	"time"

	"github.com/levee-go/levee/internal/contain"
)

// What the errors of this package match, by errors.Is. An error may match
// several: one that gave up also matches the cause of its context's end.
var (
	// ErrNotAcquired: the lock was not taken. [HeldError] says what stood in the way.
	ErrNotAcquired = errors.New("lock: not acquired")
	// ErrLost: the lock was held and is no longer, without having been released.
	// The error also matches why: ErrExpired, ErrTakenOver or ErrStateLost.
	ErrLost = errors.New("lock: lost")
	// ErrExpired: the lease has ended, as far as this process can tell.
	ErrExpired = errors.New("lock: lease expired")
	// ErrTakenOver: somebody else has had the lock since.
	ErrTakenOver = errors.New("lock: taken over by another")
	// ErrStateLost: Redis does not know of the lease: it lost its memory, failed
	// over to a replica that had not heard of it, or evicted or deleted the key.
	ErrStateLost = errors.New("lock: redis has lost the lock's state")
	// ErrNotHeld: this lease or token does not stand for the lock, or no longer.
	ErrNotHeld = errors.New("lock: not held")
	// ErrUnavailable: Redis did not answer, or with an error. If it carried out
	// what was asked all the same, that is undone in the background.
	ErrUnavailable = errors.New("lock: redis is unavailable")
	// ErrNotReplicated: fewer replicas than asked for know of the lock, which was
	// given back.
	ErrNotReplicated = errors.New("lock: not replicated")
	// ErrDeadlock: the caller's context is that of a lease on the same lock, so
	// that it would wait for itself.
	ErrDeadlock = errors.New("lock: already held by the caller")
	// ErrConflict: a key of the lock holds something of another kind, which was
	// left as it was.
	ErrConflict = errors.New("lock: key is used for something else")
	// ErrBadToken: this is not the text of a token, or of one of another version.
	ErrBadToken = errors.New("lock: malformed token")
	// ErrConfig: an argument or option is not acceptable; the text says which.
	ErrConfig = errors.New("lock: invalid argument")
	// ErrClosed: the Locker has been closed.
	ErrClosed = errors.New("lock: closed")
)

// A PanicError carries a panic of fn from the goroutine it ran on.
type PanicError = contain.PanicError

// A HeldError says that a lock is held by another. It matches ErrNotAcquired.
type HeldError struct {
	Name      string
	Remaining time.Duration // until the holder's lease ends, unless it is renewed
	Waiting   int           // the length of the queue: one for each waiting process
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("lock: %.100q is held for another %v, %d waiting", e.Name, e.Remaining, e.Waiting)
}

// Is makes the error match ErrNotAcquired.
func (e *HeldError) Is(target error) bool { return target == ErrNotAcquired }

// lost makes the error of a lease that ended for cause.
func lost(cause error) error { return &joined{ErrLost, cause} }

// unavailable makes the error for a Redis that failed with cause, of which only
// the text is shown, unless it is the end of a context.
func unavailable(cause error) error {
	return fmt.Errorf("%w: %v", ErrUnavailable, cause)
}

// notAcquired makes the error for a wait that ended for cause.
func notAcquired(cause error) error { return &joined{ErrNotAcquired, cause} }

// joined matches two errors, on one line.
type joined struct{ what, why error }

func (e *joined) Error() string   { return e.what.Error() + ": " + e.why.Error() }
func (e *joined) Unwrap() []error { return []error{e.what, e.why} }

func badConfig(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...)
}
