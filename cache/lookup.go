package cache

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/tier"
)

// A lookup is one caller's read of one key.
type lookup[K comparable, V any] struct {
	key       K
	id        string
	want      *want
	phase     phase
	renews    bool // answer is early or past its TTL, and has to be refreshed
	answer    found[V]
	err       error
	heldError bool // err is the held error of an earlier load
	shared    bool // the caller that opened the flight gets the same answer or err
	caller    flight.Caller
	opened    bool // the caller has opened the flight and has to start its run
	past      bool // the local tier has kept an older value of the key

	// What the caller has read in Redis for itself, after its Get began.
	own      ownRead
	mark     tier.Mark // of the local tier, from before the read
	seen     []byte    // the bytes that a load will replace
	fallback found[V]  // may be served if the load fails; without an entry: none
}

// A phase is how far a lookup has come. It only moves on, but for a caller whom the answer of a flight
// does not suit: that caller asks again.
type phase uint8

const (
	asking  phase = iota // the caller reads Redis, or joins a flight
	waiting              // the caller has joined a flight
	over                 // answer or err is final
)

// An ownRead is what has become of a caller's own read of Redis.
type ownRead uint8

const (
	untried    ownRead = iota // it has not been made
	tried                     // Redis has answered, or is being asked
	unanswered                // the value is unknown, which is not a miss
)

// reads reports whether the caller has to read Redis before it opens a flight.
func (l *lookup[K, V]) reads() bool { return l.phase == asking }

// hasToRead reports whether a waiting caller has not yet read a value to fall back to.
func (l *lookup[K, V]) hasToRead() bool { return l.phase != over && l.own == untried }

func (l *lookup[K, V]) answered(answer found[V]) { l.phase, l.answer = over, answer }

func (l *lookup[K, V]) failed(err error) { l.phase, l.err = over, err }

// broken ends a lookup whose read of Redis has panicked: the user's client may have hooks.
func (l *lookup[K, V]) broken(err error) {
	if err != nil && l.phase != over {
		l.failed(err)
	}
}

// fallBackTo stores an old value that may be served if the caller's load fails, unless the
// caller's rules refuse it.
func (l *lookup[K, V]) fallBackTo(old found[V]) {
	if old, ok := old.asFallback(l.want); ok {
		l.fallback = old
	}
}

// A found is an answer. The fields that Fetch and the counters report are set when it is chosen.
type found[V any] struct {
	entry    *entry[V]
	tier     Tier
	stale    bool  // past its TTL, or another process may have invalidated it without our knowledge
	fallback bool  // served because the load failed or takes too long
	lagging  bool  // loaded within ReplicaLag of a write, or as far as is known: a replica may have given the row from before it
	load     *load // that brought the value, even if it failed; nil: another process's, or before the flight
}

// loadContext returns the context of Hooks.Load, for the hooks of callers that wait for the load.
func (f *found[V]) loadContext() context.Context {
	if f == nil || f.load == nil {
		return nil
	}
	return f.load.ctx
}

// A want says which answers a read accepts. A nil want, as of [Cache.Get], accepts whatever the
// cache serves.
type want struct {
	Reads
	called time.Time // when the read was called
	part   bool      // the value becomes part of one that is being loaded, see compose.go
}

func (w *want) noLoad() bool { return w != nil && w.NoLoad }

// strict reports whether a read refuses answers that other reads accept. A strict read shares no
// flight with those: a flight that was opened for a read without rules may end with an old value.
func (w *want) strict() bool { return w != nil && (w.MaxAge != 0 || w.SkipLocal || w.NoStale) }

// composes reports whether the value that is read becomes a part of a value that is being loaded.
func (w *want) composes() bool { return w != nil && w.part }

// suits reports whether w accepts an answer.
func (f *found[V]) suits(w *want) bool {
	switch {
	case w == nil:
		return true
	case w.NoStale && f.stale, w.SkipLocal && f.tier == TierLocal && !(w.part && f.fallback): // also from a flight, which may have looked there for another reader
		return false
	}
	return f.fallback || f.isNewFor(w)
}

// isNewFor reports whether an answer is no older than w accepts. The filter's answers are always
// new; a null in the local tier has no times.
func (f *found[V]) isNewFor(w *want) bool {
	if w.MaxAge == 0 || f.tier == TierFilter {
		return true
	}
	oldest := w.called.Add(-w.MaxAge)
	return f.load != nil && !f.load.began.Before(oldest) || f.entry.created != 0 && !f.entry.began().Before(oldest)
}

// asFallback marks an old value that is served in place of an error, and reports whether w
// accepts it. A null is never a fallback.
func (f found[V]) asFallback(w *want) (found[V], bool) {
	f.fallback = true
	if w == nil {
		return f, true
	}
	f.stale = f.stale || !f.isNewFor(w)
	return f, !f.entry.null && f.suits(w)
}
