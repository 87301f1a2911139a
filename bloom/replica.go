package bloom

import (
	"errors"
	"sync/atomic"
	"time"
)

// A replica is this process's copy of a generation. It is loaded range by range
// while adds go on, and follows the log from before its first range was read: so
// it holds at least what Redis held at the entry of the log that it has reached.
// When the log has no more, both hold exactly the same, which is when their sums
// are compared.
type replica struct {
	*generation
	key   key
	name  string
	until atomic.Int64 // a no counts before that, on the clock of now
}

var start = time.Now()

// now is a clock that no change of the time of day disturbs.
func now() int64 { return int64(time.Since(start)) }

var errCorrupt = errors.New("what redis holds does not add up")

func (s *shared) newReplica(inc *incarnation, name string) *replica {
	return &replica{generation: newGeneration(s.o, inc.key, inc.number(name)), key: inc.key, name: name}
}

// denies tells whether id surely is not in the set.
func (s *shared) denies(id string) bool {
	r := s.answering.Load()
	if r == nil {
		return false
	}
	// The order matters: what made until be as late as this is in the bits that are
	// read after it, and the clock is read last, so that a process that is stopped
	// anywhere between does not answer from what it knew before.
	until := r.until.Load()
	return !r.saturated.Load() && !r.contains(r.key.sum(id)) && now() < until
}
