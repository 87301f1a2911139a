package tier

import (
	"sync"
	"sync/atomic"

	"github.com/levee-go/levee/internal/failpoint"
)

// A queue knows the entries in ristretto's queue, so that a Get right after a Fill finds
// the filled value. ristretto stores a new entry on a goroutine of its own, microseconds
// to milliseconds later.
//
// An entry enters before ristretto gets it and leaves when ristretto is done with it.
// ristretto takes entries from its queue one after another and calls Cost for each entry
// before it stores it. So when it calls Cost for an entry, the entry before has been
// stored, or rejected. The last entry stays until another follows, which costs nothing:
// a Get that finds an entry in ristretto does not look here.
//
// Of two entries with one hash in its queue, ristretto would keep the older one: it takes
// the second for a change of the cost of the first. So ristretto gets the newer one only
// when it is done with the older one. The older one is superseded and no longer counts.
// To make sure that another entry follows, put gives ristretto a nil under the hash 0.
type queue struct {
	length  atomic.Int64  // of ristretto's queue
	waiting atomic.Int64  // hashes in shards
	settled atomic.Uint64 // hashes that have left the shards
	last    *head         // the last that ristretto has taken; belongs to ristretto's goroutine
	shards  [16]queueShard
}

type queueShard struct {
	mu      sync.Mutex
	records map[uint64]record // by hash
}

// A record has the entries of a hash.
type record struct {
	given  *head // the entry that ristretto has
	newest *head // given, or the entry that ristretto gets next
}

// maxQueued is less than ristretto's queue holds. When that queue is full, ristretto drops
// entries, and updates even silently.
const maxQueued = 32_000

func (q *queue) shard(hash uint64) *queueShard { return &q.shards[hash>>60] }

// enter adds an entry. If first is true, the entry is the only one of its hash and the caller has
// to give it to ristretto. skipped is an older entry that ristretto will never get, or nil.
func (q *queue) enter(hash uint64, e *head) (first bool, skipped *head) {
	s := q.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	p, there := s.records[hash]
	if !there {
		if s.records == nil {
			s.records = make(map[uint64]record)
		}
		s.records[hash] = record{e, e}
		q.waiting.Add(1)
		return true, nil
	}
	if p.newest == p.given {
		p.given.state.Or(superseded)
	} else {
		skipped = p.newest
	}
	s.records[hash] = record{p.given, e}
	return false, skipped
}

// leave notes that ristretto is done with an entry. If there is a newer one of its hash, leave
// returns it, and the caller has to give it to ristretto.
func (q *queue) leave(e *head) (next *head) {
	hash := e.hash
	s := q.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	p, there := s.records[hash]
	switch {
	case !there || p.given != e:
		return nil // the entry has left before
	case p.newest != e:
		s.records[hash] = record{p.newest, p.newest}
		return p.newest
	}
	delete(s.records, hash)
	q.settled.Add(1) // before waiting: a reader that finds nothing waiting looks at settled next
	failpoint.At("settled")
	q.waiting.Add(-1)
	return nil
}

// find returns the newest entry of hash in the queue, or nil.
func (q *queue) find(hash uint64) *head {
	if q.waiting.Load() == 0 {
		return nil
	}
	s := q.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[hash].newest
}

// clear lets go of the entries that ristretto has not got, and forgets all.
func (q *queue) clear() {
	for i := range q.shards {
		for _, p := range q.shards[i].records {
			if p.newest != p.given {
				p.newest.letGo()
			}
		}
		q.shards[i].records = nil
	}
}
