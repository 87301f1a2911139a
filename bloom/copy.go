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

	// cleared holds positions that the log says are cleared, and that are still set
	// here. What is added after they were cleared takes them out again.
	cleared map[uint64]struct{}
}

var start = time.Now()

// now is a clock that no change of the time of day disturbs.
func now() int64 { return int64(time.Since(start)) }

var errCorrupt = errors.New("what redis holds does not add up")

func (s *shared) newReplica(inc *incarnation, name string) *replica {
	o := s.o
	o.Counting = false // Redis counts; here it matters only what is set
	return &replica{
		generation: newGeneration(o, inc.key, inc.number(name)), key: inc.key, name: name,
		cleared: map[uint64]struct{}{},
	}
}

func (r *replica) add(h hash) {
	r.keep(h)
	r.generation.add(h)
}

// keep has the positions of h stay set, whatever was cleared before it was added.
func (r *replica) keep(h hash) {
	if len(r.cleared) == 0 {
		return
	}
	w := r.spread.start(h)
	for range r.spread.hashes {
		delete(r.cleared, w.next(&r.spread))
	}
}

// forget notes what the log says is cleared.
func (r *replica) forget(positions []uint64) {
	for _, p := range positions {
		if p < r.spread.size {
			r.cleared[p] = struct{}{}
		}
	}
}

// settle clears what was noted and is not needed again. To clear at once what an add
// further on in the log sets again would deny its id meanwhile, although it may be one
// that this process has added itself.
func (r *replica) settle() {
	gone := uint64(0)
	for p := range r.cleared {
		if r.table.clear(p) {
			gone++
		}
	}
	clear(r.cleared)
	if gone > 0 {
		r.filled(r.set.Add(-gone))
	}
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
