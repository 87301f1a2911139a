package cache

import (
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
