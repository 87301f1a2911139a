package tier

import (
	"sync"
	"sync/atomic"

	"github.com/levee-go/levee/internal/failpoint"
)

// A queue knows the items in ristretto's queue, so that a Get right after a Fill finds
// the filled value. ristretto stores a new item on a goroutine of its own, microseconds
// to milliseconds later.
//
// An item enters before ristretto gets it and leaves when ristretto is done with it.
// ristretto takes items from its queue one after another and calls Cost for each item
// before it stores it. So when it calls Cost for an item, the item before has been
// stored, or rejected. The last item stays until another follows, which costs nothing:
// a Get that finds an item in ristretto does not look here.
//
// Of two items with one hash in its queue, ristretto would keep the older one: it takes
// the second for a change of the cost of the first. So ristretto gets the newer one only
// when it is done with the older one. The older one is superseded and no longer counts.
// To make sure that another item follows, put gives ristretto a nil under the hash 0.
type queue struct {
	length  atomic.Int64  // of ristretto's queue
	waiting atomic.Int64  // hashes in shards
	settled atomic.Uint64 // hashes that have left the shards
	last    item          // the last that ristretto has taken; belongs to ristretto's goroutine
	shards  [16]queueShard
}

type queueShard struct {
	mu      sync.Mutex
	records map[uint64]record // by hash
}

// A record has the items of a hash.
type record struct {
	given  item // the item that ristretto has
	newest item // given, or the item that ristretto gets next
}

// maxQueued is less than ristretto's queue holds. When that queue is full, ristretto drops
// items, and updates even silently.
const maxQueued = 32_000

func (q *queue) shard(hash uint64) *queueShard { return &q.shards[hash>>60] }

// enter adds an item. If first is true, the item is the only one of its hash and the caller has
// to give it to ristretto. skipped is an older item that ristretto will never get, or nil.
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

// leave notes that ristretto is done with an item. If there is a newer one of its hash, leave
// returns it, and the caller has to give it to ristretto.
func (q *queue) leave(it item) (next item) {
	hash := it.header().hash
	s := q.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	p, there := s.records[hash]
	switch {
	case !there || p.given != it:
		return nil // the item has left before
	case p.newest != it:
		s.records[hash] = record{p.newest, p.newest}
		return p.newest
	}
	delete(s.records, hash)
	q.settled.Add(1) // before waiting: a reader that finds nothing waiting looks at settled next
	failpoint.At("settled")
	q.waiting.Add(-1)
	return nil
}

// find returns the newest item of hash in the queue, or nil.
func (q *queue) find(hash uint64) item {
	if q.waiting.Load() == 0 {
		return nil
	}
	s := q.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[hash].newest
}

// clear lets go of the items that ristretto has not got, and forgets all.
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
