package tier

import (
	"sync"
	"sync/atomic"

	"github.com/levee-go/levee/internal/failpoint"
)

// A queue finds the items that stand in ristretto's queue, so that a Get right after a
// Fill finds what was filled. ristretto stores a new item on a goroutine of its own,
// microseconds to milliseconds later.
//
// An item enters before ristretto gets it and leaves when ristretto is done with it.
// ristretto takes items from its queue one after another and asks for the cost of each
// before it stores it. So when it asks for the cost of one, the one before has been
// stored, or rejected. The last item stays until another follows, which costs
// nothing: who finds an item in ristretto does not look here.
//
// Of two items of one hash on their way ristretto would keep the older one: it takes the
// second for a change of the cost of the first. So ristretto gets the newer one only
// when it is done with the older one. The older one is superseded and does not count
// any more. To make sure that another item follows, put gives ristretto a nil under
// the hash 0.
type queue struct {
	length  atomic.Int64  // of ristretto's queue
	waiting atomic.Int64  // hashes in shards
	settled atomic.Uint64 // items that have left
	last    item          // that ristretto has taken; belongs to ristretto's goroutine
	shards  [16]queueShard
}

type queueShard struct {
	mu      sync.Mutex
	records map[uint64]record // by hash
}

// A record is what is known of a hash.
type record struct {
	given  item // to ristretto
	newest item // given, or what ristretto gets next
}

// maxQueued is less than ristretto's queue holds. When that is full, ristretto drops
// what it is given, and if that is an update, silently.
const maxQueued = 32_000

func (q *queue) shard(hash uint64) *queueShard { return &q.shards[hash>>60] }

// enter notes that it is on its way. If it is the first one of its hash, the caller has
// to give it to ristretto. skipped is an item that is never given.
func (q *queue) enter(hash uint64, it item) (first bool, skipped item) {
	s := q.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	p, there := s.records[hash]
	if !there {
		if s.records == nil {
			s.records = make(map[uint64]record)
		}
		s.records[hash] = record{it, it}
		q.waiting.Add(1)
		return true, nil
	}
	if p.newest == p.given {
		p.given.header().state.Or(superseded)
	} else {
		skipped = p.newest
	}
	s.records[hash] = record{p.given, it}
	return false, skipped
}

// leave notes that ristretto is done with it. If there is a newer one, the caller has to
// give that to ristretto.
func (q *queue) leave(it item) (next item) {
	hash := it.header().hash
	s := q.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	p, there := s.records[hash]
	switch {
	case !there || p.given != it:
		return nil // it has left before
	case p.newest != it:
		s.records[hash] = record{p.newest, p.newest}
		return p.newest
	}
	delete(s.records, hash)
	q.settled.Add(1) // first: who finds nothing waiting looks at it
	failpoint.At("settled")
	q.waiting.Add(-1)
	return nil
}

// find returns the newest item of hash on its way, or nil.
func (q *queue) find(hash uint64) item {
	if q.waiting.Load() == 0 {
		return nil
	}
	s := q.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[hash].newest
}

// clear lets go of the items that ristretto has not been given.
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
