package cache

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
)

var (
	// ErrNotFound reports that the source has no such key. A loader may return
	// it to say so.
	ErrNotFound = errors.New("cache: not found")
	// ErrNotModified is for a [Source.LoadEntry] to return, as it is or wrapped: the value
	// that it got as Entry.Prev still holds, and gets another life. Without a Prev it is an
	// error like others.
	ErrNotModified = errors.New("cache: not modified")
	// ErrOverloaded reports that the loader was not called, to spare the source. It also
	// matches the cause, breaker.ErrOpen or breaker.ErrLimited. The latter comes at
	// once if the load could not be expected to end before the caller's deadline, and its
	// text says which limit it was.
	ErrOverloaded = errors.New("cache: overloaded")
	// ErrInvalidKey reports a key that is too long or has no text form.
	ErrInvalidKey = errors.New("cache: invalid key")
	// ErrClosed reports that the cache has been closed.
	ErrClosed = errors.New("cache: closed")
	// ErrNotInvalidated reports that the change is made, and that Redis did not confirm its
	// invalidation: the transaction of a Write has committed, or an Invalidate, Expire, Set,
	// Clear, ClearTags or Announce has done what it could. The invalidation is tried again until
	// Redis confirms it; then other processes no longer see the old value, and this process does
	// not see it meanwhile. Close gives it up after about a second. When more than 10,000 keys
	// wait, a Clear takes their place. It comes from the call that returns it alone: the error of a transaction that failed
	// does not match it.
	ErrNotInvalidated = errors.New("cache: not invalidated everywhere yet, and tried again")
	// ErrNotCached reports, to a read with [Reads].NoLoad, that neither this process nor Redis has
	// the value. Whether the source has it is not known.
	ErrNotCached = errors.New("cache: not cached")
	// ErrUnavailable reports, from Check, cachedebug.Inspect, Warm and Refresh, that Redis could not be
	// reached, or did not confirm what they did. The source is as it was.
	ErrUnavailable = errors.New("cache: redis unavailable")
	// ErrReentrant reports that a loader asked the cache for the key it loads. It
	// would have waited for itself.
	ErrReentrant = errors.New("cache: a load has read its own key")
	// ErrLoadTimeout reports that a load took longer than the breaker's Timeout (the
	// error then matches breaker.ErrTimeout too), or than Options.Rebuild.LoadTimeout.
	ErrLoadTimeout = errors.New("cache: load timed out")
)

// A PanicError is what the callers of a loader that panicked, or called runtime.Goexit, get.
// Value is what was passed to panic, and errors.As and errors.Is find it if it was an error;
// of a Goexit it is a text that says so. Stack is where, as debug.Stack
// prints it; the text holds it, because the goroutine that reads the error has another one. The
// PanicErrors of all packages of the library are one type.
type PanicError = contain.PanicError

// named gives an error of the packages below the name that this package promises.
func named(err error) error {
	var panicked *contain.PanicError
	var loaders *loaderError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &loaders):
		return loaders.error
	case errors.Is(err, flight.ErrClosed):
		return ErrClosed
	case errors.Is(err, flight.ErrReentrant):
		return ErrReentrant
	case errors.As(err, &panicked):
		return panicked
	case errors.Is(err, breaker.ErrOpen), errors.Is(err, breaker.ErrLimited):
		return fmt.Errorf("%w: %w", ErrOverloaded, err)
	case errors.Is(err, breaker.ErrTimeout):
		return fmt.Errorf("%w: %w", ErrLoadTimeout, err)
	case errors.Is(err, fleet.ErrUnavailable):
		return &renamed{ErrUnavailable, err}
	case strings.HasPrefix(err.Error(), below):
		return &renamed{nil, err}
	}
	return err
}

// below begins the texts of the errors of package mutexrebuild, which users of a cache
// have never met.
const below = "mutexrebuild: "

// A renamed is an error of package mutexrebuild under this package's name.
type renamed struct{ is, err error }

func (r *renamed) Error() string        { return "cache: " + strings.TrimPrefix(r.err.Error(), below) }
func (r *renamed) Is(target error) bool { return r.is != nil && target == r.is }
func (r *renamed) Unwrap() error        { return r.err }

// notInvalidated is the error of a change that Redis did not confirm.
func notInvalidated(err error) error {
	cause := errors.New(strings.TrimPrefix(err.Error(), fleet.ErrUnavailable.Error()+": "))
	if errors.Is(err, fleet.ErrTooFewReplicas) { // for Follow
		cause = &maskedError{cause.Error(), fleet.ErrTooFewReplicas, nil}
	}
	return fmt.Errorf("%w: %w", ErrNotInvalidated, cause)
}

// masked says what err has stopped. What it returns matches all that err matches but
// ErrNotInvalidated, which would be that of another call.
func masked(what string, err error) error {
	return &maskedError{what + ": " + strings.TrimPrefix(err.Error(), "cache: "), err, []error{ErrNotInvalidated}}
}

// others are the errors that say something of the cache which returns them. From a loader they are those
// of another cache.
var others = []error{ErrNotFound, ErrClosed, ErrInvalidKey, ErrNotCached, flight.ErrClosed, flight.ErrReentrant}

// A loaderError is what a loader has returned, which says nothing of this cache, whatever it matches:
// the loader may have asked another breaker, another cache or another Redis.
type loaderError struct{ error }

func (e *loaderError) Unwrap() error { return e.error }

// ofLoader returns the error of a loader as one that says nothing of this cache.
func ofLoader(err error) error {
	if slices.ContainsFunc(others, func(other error) bool { return errors.Is(err, other) }) {
		err = &maskedError{err.Error(), err, others}
	}
	return &loaderError{err}
}

// isOfLoader reports whether a loader has returned err.
func isOfLoader(err error) bool {
	var ours *loaderError
	return errors.As(err, &ours)
}

// A maskedError matches what err matches, but for some.
type maskedError struct {
	text string
	err  error
	not  []error
}

func (m *maskedError) Error() string { return m.text }
func (m *maskedError) Is(target error) bool {
	return !slices.Contains(m.not, target) && errors.Is(m.err, target)
}
func (m *maskedError) As(target any) bool { return errors.As(m.err, target) }

// A BatchError reports which keys of a GetMany, a FetchMany, a Warm or a Refresh failed, and why.
type BatchError struct {
	Causes map[any]error // by key, of the cache's key type: Causes[int64(42)], not Causes[42]
	Others int           // more keys of a Warm without an answer, beside the first hundred, which are in Causes
}

// Error names one of the causes.
func (e *BatchError) Error() string {
	for key, err := range e.Causes {
		others := ""
		if n := len(e.Causes) + e.Others - 1; n > 0 {
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

// isNotFound reports whether a loader's error says that the source has no such key. An error that
// also matches one of failures does not: a loader may join the errors of several reads.
func (c *Cache[K, V]) isNotFound(err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, ErrNotFound), errors.Is(err, sql.ErrNoRows), c.o.IsNotFound != nil && c.o.IsNotFound(err):
		return !slices.ContainsFunc(failures, func(failure error) bool { return errors.Is(err, failure) })
	}
	return false
}

// failures say that the source was not read, or not to the end.
var failures = []error{ErrOverloaded, ErrLoadTimeout, breaker.ErrOpen, breaker.ErrLimited, breaker.ErrTimeout, context.Canceled, context.DeadlineExceeded}

// isNil reports whether a value is a nil pointer, which a loader returns that has found
// nothing: a caller who has looked at the error alone would panic. Only a V that is a
// pointer's type has such values: an empty list is a value.
func isNil[V any](value *V) bool {
	v := reflect.ValueOf(value).Elem()
	return v.Kind() == reflect.Pointer && v.IsNil()
}
