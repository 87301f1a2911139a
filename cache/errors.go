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
	// ErrNotFound reports that the source does not have the key. A loader may return
	// it to say so.
	ErrNotFound = errors.New("cache: not found")
	// ErrNotModified is returned by a [Source.LoadEntry], as it is or wrapped, to say that the
	// value in Entry.Prev is still valid: Prev is stored with a new TTL. Without a Prev it is an
	// error like any other.
	ErrNotModified = errors.New("cache: not modified")
	// ErrOverloaded reports that the breaker did not let the loader be called. The error also
	// matches the cause, breaker.ErrOpen or breaker.ErrLimited. ErrLimited is returned at once if
	// the load could not be expected to end before the caller's deadline; its text names the limit.
	ErrOverloaded = errors.New("cache: overloaded")
	// ErrInvalidKey reports a key that is too long or has no text form.
	ErrInvalidKey = errors.New("cache: invalid key")
	// ErrClosed reports that the cache has been closed.
	ErrClosed = errors.New("cache: closed")
	// ErrNotInvalidated reports that the change is made but Redis did not confirm its invalidation:
	// the transaction of a Write has committed, or an Invalidate, Expire, Set, Clear, ClearTags or
	// Announce has done what it could. The cache repeats the invalidation until Redis confirms it;
	// until then this process does not serve the old value, but other processes may. Close gives up
	// after about a second. When more than 10,000 keys wait, a Clear replaces their invalidations.
	// The error of a Write whose transaction failed never matches ErrNotInvalidated.
	ErrNotInvalidated = errors.New("cache: not invalidated everywhere yet, and tried again")
	// ErrNotCached reports, to a read with [Reads].NoLoad, that neither this process nor Redis has
	// the value. The source may have it.
	ErrNotCached = errors.New("cache: not cached")
	// ErrUnavailable reports, from Check, cachedebug.Inspect, Warm and Refresh, that Redis could not be
	// reached, or did not confirm what they did. The source is unchanged.
	ErrUnavailable = errors.New("cache: redis unavailable")
	// ErrReentrant reports that a loader has read from the cache the key that it loads. It
	// would have waited for itself.
	ErrReentrant = errors.New("cache: a load has read its own key")
	// ErrLoadTimeout reports that a load took longer than the breaker's Timeout. The error
	// matches breaker.ErrTimeout too.
	ErrLoadTimeout = errors.New("cache: load timed out")
)

// A PanicError is returned to the callers that wait for a loader that panicked or called
// runtime.Goexit. Value is the argument of panic, which errors.As and errors.Is find if it is an
// error; for a Goexit it is a text that says so. Stack is the stack of the loader's goroutine, as
// debug.Stack prints it; the text of the error contains it, because the goroutine that reads the
// error has another stack. The PanicErrors of all packages of the library are one type.
type PanicError = contain.PanicError

// named returns err as an error of this package, if it is one of the packages below.
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

// below is the prefix of the errors of package mutexrebuild, which users of a cache do not know.
const below = "mutexrebuild: "

// A renamed is an error of package mutexrebuild with the prefix of this package.
type renamed struct{ is, err error }

func (r *renamed) Error() string        { return "cache: " + strings.TrimPrefix(r.err.Error(), below) }
func (r *renamed) Is(target error) bool { return r.is != nil && target == r.is }
func (r *renamed) Unwrap() error        { return r.err }

// Committed returns nil for an error that matches [ErrNotInvalidated], and any other error as it is. It
// is what a handler returns of a Write: with ErrNotInvalidated the transaction has committed, so its user
// must not be told that it failed, or repeat it. The cache logs such a Write, at most once a minute, and
// repeats the invalidation. It is for the error of a Write alone: one that is joined with other errors
// becomes nil with them, and an Announce returns ErrNotInvalidated before anything has committed.
//
//	return cache.Committed(products.Write(ctx, []int64{42}, rename))
func Committed(err error) error {
	if errors.Is(err, ErrNotInvalidated) {
		return nil
	}
	return err
}

// notInvalidated returns the error of a change that Redis did not confirm.
func notInvalidated(err error) error {
	cause := errors.New(strings.TrimPrefix(err.Error(), fleet.ErrUnavailable.Error()+": "))
	if onlyReplicas(err) {
		cause = &maskedError{cause.Error(), fleet.ErrTooFewReplicas, nil}
	}
	return fmt.Errorf("%w: %w", ErrNotInvalidated, cause)
}

// onlyReplicas reports whether err says that masters have made all changes, and only replicas are missing.
func onlyReplicas(err error) bool { return errors.Is(err, fleet.ErrTooFewReplicas) }

// joined is errors.Join, except that onlyReplicas is true only if it is for each of errs.
func joined(errs ...error) error {
	err := errors.Join(errs...)
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil && !onlyReplicas(err) }) {
		return &maskedError{err.Error(), err, []error{fleet.ErrTooFewReplicas}}
	}
	return err
}

// masked returns an error that begins with what and matches all that err matches except
// ErrNotInvalidated, which would belong to another call.
func masked(what string, err error) error {
	return &maskedError{what + ": " + strings.TrimPrefix(err.Error(), "cache: "), err, []error{ErrNotInvalidated}}
}

// others are errors that describe the state of the cache that returns them. If a loader returns
// one, it is about another cache.
var others = []error{ErrNotFound, ErrClosed, ErrInvalidKey, ErrNotCached, flight.ErrClosed, flight.ErrReentrant}

// A loaderError is an error that a loader has returned. Whatever it matches, it says nothing
// about this cache: the loader may have used another breaker, another cache or another Redis.
type loaderError struct{ error }

func (e *loaderError) Unwrap() error { return e.error }

// ofLoader marks err as the error of a loader.
func ofLoader(err error) error {
	if slices.ContainsFunc(others, func(other error) bool { return errors.Is(err, other) }) {
		err = &maskedError{err.Error(), err, others}
	}
	return &loaderError{err}
}

// isOfLoader reports whether err is the error of a loader.
func isOfLoader(err error) bool {
	var ours *loaderError
	return errors.As(err, &ours)
}

// A maskedError matches what err matches, except the errors in not.
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
type BatchError[K comparable] struct {
	Causes map[K]error // by key
	Others int         // number of failed keys of a Warm beyond the first hundred, which are in Causes
}

// Error names one of the causes.
func (e *BatchError[K]) Error() string {
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
func (e *BatchError[K]) Unwrap() []error {
	causes := make([]error, 0, len(e.Causes))
	for _, err := range e.Causes {
		causes = append(causes, err)
	}
	return causes
}

// isNotFound reports whether a loader's error says that the source does not have the key. An
// error that also matches one of failures does not say so: a loader may join the errors of
// several reads.
func (l *loader[K, V]) isNotFound(err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, ErrNotFound), errors.Is(err, sql.ErrNoRows), l.o.IsNotFound != nil && l.o.IsNotFound(err):
		return !slices.ContainsFunc(failures, func(failure error) bool { return errors.Is(err, failure) })
	}
	return false
}

// failures are errors after which the source was not read, or not completely.
var failures = []error{ErrOverloaded, ErrLoadTimeout, breaker.ErrOpen, breaker.ErrLimited, breaker.ErrTimeout, context.Canceled, context.DeadlineExceeded}

// isAbsent reports whether a loader has said, by what it returned, that the source does not have the key.
func (l *loader[K, V]) isAbsent(value *V, err error) bool {
	return err == nil && isNil(value) || l.isNotFound(err)
}

// isNil reports whether value is a nil pointer. A loader that has found nothing may return one,
// and a caller that checks only the error would panic. It is false for every V that is not a
// pointer type: an empty list is a value.
func isNil[V any](value *V) bool {
	v := reflect.ValueOf(value).Elem()
	return v.Kind() == reflect.Pointer && v.IsNil()
}
