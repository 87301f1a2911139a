package tier

import (
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/ristretto/v2"
)

// perEntry is how many bytes ristretto, the front and the allocator take for an entry
// beside the entry itself, as measured.
const perEntry = 250

// A store is a ristretto that keeps to its budget and shows at once what it was given.
//
// ristretto alone exceeds its budget in two ways: it does not count the entries in
// its queue, and it evicts only for new keys, so values that grow when they are
// overwritten evict nothing. So the store counts for itself. It adds the size of an
// entry before ristretto gets it, and subtracts it when ristretto says that it has
// let go of it.
//
// An empty store has neither tables nor goroutines: ristretto is made for the first
// entry.
type store struct {
	budget int64
	most   int64 // that used may be: entries in ristretto's queue are beyond the budget
	used   atomic.Int64
	queue  queue

	mu    sync.Mutex // guards the making of inner
	inner atomic.Pointer[ristretto.Cache[uint64, item]]
}

func newStore(budget int64) *store {
	return &store{budget: budget, most: budget + min(max(budget/16, 1<<20), 4<<20)}
}

// open returns ristretto, which the first call makes.
func (s *store) open() *ristretto.Cache[uint64, item] {
	if inner := s.inner.Load(); inner != nil {
		return inner
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if inner := s.inner.Load(); inner != nil {
		return inner
	}
	inner, err := ristretto.NewCache(&ristretto.Config[uint64, item]{
		NumCounters:        min(s.budget/64, 1<<26), // at least four for each entry, of 4 bytes each
		MaxCost:            s.budget,
		BufferItems:        64,
		IgnoreInternalCost: true, // perEntry has it, and more exactly
		KeyToHash:          func(hash uint64) (uint64, uint64) { return hash, 0 },
		Cost:               s.dequeued,
		OnEvict:            s.evicted,
		OnReject:           s.rejected,
		OnExit:             s.exited,
	})
	if err != nil {
		panic("localcache: " + err.Error()) // it objects to nothing but zeros and negatives
	}
	s.inner.Store(inner)
	return inner
}

// roomy reports whether ristretto has nothing to choose yet.
func (s *store) roomy() bool { return s.used.Load() < s.budget/2 }

// put hands it to ristretto, unless there is no room for it.
func (s *store) put(it item) bool {
	hash := it.header().hash
	if s.used.Add(it.bytes()) > s.most {
		it.letGo()
		s.give(hash, nil)
		return false
	}
	first, skipped := s.queue.enter(hash, it)
	if skipped != nil {
		skipped.letGo()
	}
	if !first {
		s.give(0, nil) // see queue
		return true
	}
	if s.give(hash, it) {
		return true
	}
	s.withdraw(it)
	return false
}

// give puts an item into ristretto's queue, unless that is full. An entry that is in
// ristretto already under this hash is replaced at once.
//
// A nil makes room when the store is over its budget, which happens when updates grow:
// ristretto evicts only for new keys. The nil frees the old value of this key at once,
// or makes ristretto evict for a new one.
func (s *store) give(hash uint64, it item) bool {
	if s.queue.length.Add(1) <= maxQueued && s.open().Set(hash, it, 0) {
		return true
	}
	s.queue.length.Add(-1)
	return false
}

// withdraw takes back an item that ristretto did not take. A newer one of the same hash
// is tried next.
func (s *store) withdraw(it item) {
	for it != nil {
		next := s.queue.leave(it)
		it.letGo()
		if next != nil && s.give(next.header().hash, next) {
			return
		}
		it = next
	}
}

// settle is called when it is known what has become of an item: it is in ristretto, or
// was rejected. A newer one of the same hash follows.
func (s *store) settle(it item) {
	if it == nil {
		return
	}
	if next := s.queue.leave(it); next != nil && !s.give(next.header().hash, next) {
		s.withdraw(next)
	}
}

// ristretto calls the following, from its goroutine and from inside of Set. It holds
// no lock then.

// dequeued gives the cost of an item, which ristretto asks for when the item leaves the
// queue.
func (s *store) dequeued(it item) int64 {
	s.queue.length.Add(-1)
	s.settle(s.queue.last) // ristretto is done with the one before
	s.queue.last = it
	if it == nil {
		return perEntry
	}
	return it.bytes()
}

func (s *store) evicted(i *ristretto.Item[item]) {
	if i.Value != nil {
		i.Value.evicted()
	}
}

func (s *store) rejected(i *ristretto.Item[item]) {
	if i.Value != nil {
		i.Value.rejected()
		s.settle(i.Value)
	}
}

func (s *store) exited(it item) {
	if it != nil {
		it.letGo()
	}
}

// close frees the entries. Nobody may be inside.
func (s *store) close() {
	if inner := s.inner.Load(); inner != nil {
		inner.Close()
		s.queue.clear()
	}
}
