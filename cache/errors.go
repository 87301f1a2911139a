package cache

import (
	"errors"
	"fmt"

	"github.com/levee-go/levee/mutexrebuild"
)

var (
	// ErrNotFound reports that the source has no such key. A loader may return
	// it to say so.
	ErrNotFound = errors.New("cache: not found")
	// ErrOverloaded reports that the source was not asked, to spare it. It also
	// matches the cause, breaker.ErrOpen or breaker.ErrLimited.
	ErrOverloaded = errors.New("cache: overloaded")
	// ErrInvalidKey reports a key that is too long or has no text form.
	ErrInvalidKey = errors.New("cache: invalid key")
	// ErrClosed reports that the cache has been closed.
	ErrClosed = errors.New("cache: closed")
	// ErrUnavailable reports that Redis did not confirm a Set, an Invalidate or
	// the end of a Write. Whether it took effect is unknown. It is tried again until
	// it has: then others no longer see the old value, and this process does not see
	// it meanwhile.
	ErrUnavailable = mutexrebuild.ErrUnavailable
	// ErrReentrant reports that a loader asked the cache for the key it loads.
	ErrReentrant = mutexrebuild.ErrReentrant
	// ErrLoadTimeout reports that a load took longer than the breaker's Timeout (the
	// error then matches breaker.ErrTimeout too), or a whole rebuild longer than
	// Options.Rebuild.LoadTimeout.
	ErrLoadTimeout = mutexrebuild.ErrLoadTimeout
	// ErrGoexit reports that the loader called runtime.Goexit.
	ErrGoexit = mutexrebuild.ErrGoexit
)

// PanicError is what the callers of a loader that panicked get. Its text holds the
// stack.
type PanicError = mutexrebuild.PanicError

// A BatchError reports which keys of a GetMany have no answer, and why.
type BatchError struct {
	Causes map[any]error // by key
}

// Error names one of the causes.
func (e *BatchError) Error() string {
	for key, err := range e.Causes {
		others := ""
		if n := len(e.Causes) - 1; n > 0 {
			others = fmt.Sprintf(" and %d more", n)
		}
		return fmt.Sprintf("cache: no answer for %.64q%s: %v", fmt.Sprint(key), others, err)
	}
	return "cache: no key without an answer"
}

// Unwrap returns the causes, for errors.Is and errors.As.
func (e *BatchError) Unwrap() []error {
	causes := make([]error, 0, len(e.Causes))
	for _, err := range e.Causes {
		causes = append(causes, err)
	}
	return causes
}
