// Package inside defines what the packages that show, export, administer and audit a cache need of
// it. Other packages do not use it.
package inside

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/breaker"
)

// A Cache is a cache of any types, whose keys are named by their texts.
type Cache struct {
	Breaker *breaker.Breaker // Options.Breaker, or the cache's own, which has the cache's name
	Filter  any              // Options.Filter; nil: none

	Inspect func(ctx context.Context, id string) (Inspection, error) // see cachedebug.Inspect
	TopKeys func(n int) []HotKey                                     // see cachedebug.TopKeys

	// These return the errors of the cache's methods of the same names. If an id is invalid, they
	// return cache.ErrInvalidKey and do nothing.
	Invalidate func(ctx context.Context, ids []string) error
	Expire     func(ctx context.Context, ids []string) error
	Refresh    func(ctx context.Context, ids []string) error
	Announce   func(ctx context.Context, ids []string) error

	Audit any // an Audit of the cache's types
}

// ErrNoKey reports that the text of a key cannot be turned back into the key, which a load needs.
var ErrNoKey = errors.New("this cache cannot turn the text of a key back into the key, which a load needs: invalidate it")

// A HotKey is a key that is read often.
type HotKey struct {
	ID string // the key as text
	// Share is the share of recent Gets that were for the key. It may be too high by Error.
	Share, Error float64
}

// An Inspection is the state of a key, see cachedebug.Inspect.
type Inspection struct {
	ID string // the key as text

	Filter       string    // "may exist", "absent", or "" without a filter
	Local        *Standing // in the local tier of this process; nil: nothing
	LocalUnknown bool      // the key's text cannot be turned back into the key, so the local tier was not read
	Redis        *Standing // in Redis; nil: nothing, or Redis was not read
	Loading      bool      // readers of this process wait for the key
	HeldError    error     // held error of a load that failed a moment ago

	RedisKey    string          // name of the value in Redis; "" without Redis
	Leased      bool            // somebody loads the value
	LeaseLeft   time.Duration   // how long other processes wait for that, unless the lease is renewed
	Awaited     bool            // another process waits for the value
	Holds       []time.Duration // holds of writers: how long each keeps the key closed at most, the longest first
	Foreign     bool            // there is a key of another Redis type
	Outage      bool            // levee does not call Redis at present
	Unconfirmed bool            // an invalidation of this process waits for Redis to confirm it
}

// A Standing is what one tier holds of a key.
type Standing struct {
	// State is "fresh", "stale" (past its TTL, served while it is refreshed), "fallback" (served
	// only if its load fails, see cache.Options.StaleIfError) or "dead" (no longer served). An
	// entry that was invalidated or cleared, or cannot be read, is dead. A "kept" value is within
	// its TTL, but its time in the local tier has ended: it is served if Redis and the source
	// fail.
	State string
	Null  bool          // the key is known not to exist
	Age   time.Duration // since the value was read from the source
	TTL   time.Duration // remaining TTL; 0 when it is past
	Left  time.Duration // until the tier drops or no longer serves it
	Bytes int           // in Redis: size of the value with its header; local: size that the budget counts
	Value any           // nil for a null and for a value that cannot be read. Nobody may change it.
}
