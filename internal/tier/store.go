package tier

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/ristretto/v2"
)

// perEntry is how many bytes ristretto, the front and the allocator take for an entry
// besides the entry itself. It was measured, as was fixed, which ristretto's queue (256 KiB), its
// 256 shards, the stripes and the counters of calls take.
const (
	perEntry = 240
	fixed    = 384 << 10

	// bytesPerCounter is how much of the budget there is for each of ristretto's counters.
	bytesPerCounter = 48
)

// A store is a ristretto that keeps to its budget and finds an entry as soon as it was put.
//
// ristretto alone exceeds its budget in two ways: it does not count the entries in
// its queue, and it evicts only for new keys, so values that grow when they are
// overwritten evict nothing. So the store does its own counting. It adds the size of an
// entry before ristretto gets it, and subtracts the size when ristretto has let go of
// the entry.
//
// An empty store has neither tables nor goroutines: the first entry creates ristretto.
type store struct {
	budget int64
	most   int64 // the most that used may be: ristretto's queue comes on top of the budget
	used   atomic.Int64
	queue  queue

	mu    sync.Mutex // guards the creation of inner
	inner atomic.Pointer[ristretto.Cache[uint64, *head]]
}

func newStore(budget int64) *store {
	budget -= min(fixed, budget/2)
	return &store{budget: budget, most: budget + min(max(budget/16, 1<<20), 4<<20)}
}

// open returns ristretto, which the first call creates.
func (s *store) open() *ristretto.Cache[uint64, *head] {
	if inner := s.inner.Load(); inner != nil {
		return inner
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if inner := s.inner.Load(); inner != nil {
		return inner
	}
	inner, err := ristretto.NewCache(&ristretto.Config[uint64, *head]{
		NumCounters:        counters(s.budget),
		MaxCost:            s.budget,
		BufferItems:        64,
		IgnoreInternalCost: true, // perEntry includes it, and is more exact
		KeyToHash:          func(hash uint64) (uint64, uint64) { return hash, 0 },
		Cost:               s.dequeued,
		OnEvict:            s.evicted,
		OnReject:           s.rejected,
		OnExit:             s.exited,
	})
	if err != nil {
		panic("localcache: " + err.Error()) // NewCache rejects only numbers that are zero or negative
	}
	s.inner.Store(inner)
	return inner
}

// counters returns how many counters ristretto gets: about ten for each entry of 200 bytes.
//
// ristretto halves its counts after as many reads as it has counters. With 7 for each entry it forgets so fast that
// Zipf and a flood have lower hit ratios; with 14 so slowly that a working set that shifts does (internal/bench
// -work hitratio). Its sketch rounds up to a power of two, and its doorkeeper, of 9.6 bits for each counter, to
// another, which is twice as large from 0.83 times that power on.
func counters(budget int64) int64 {
	n := max(min(budget/bytesPerCounter, 1<<26), 64) // 64: for a part of a budget that has a few bytes
	return min(n, (1<<bits.Len64(uint64(n-1)))*5/6)
}

// roomy reports whether the budget is less than half used, so that ristretto need not choose yet.
func (s *store) roomy() bool { return s.used.Load() < s.budget/2 }

// put stores an entry. If there is no room, it lets go of the entry and reports false.
func (s *store) put(e *head) bool {
	hash := e.hash
	if s.used.Add(int64(e.cost)) > s.most {
		e.letGo()
		s.give(hash, nil)
		return false
	}
	first, skipped := s.queue.enter(hash, e)
	if skipped != nil {
		skipped.letGo()
	}
	if !first {
		s.give(0, nil) // see queue
		return true
	}
	if s.give(hash, e) {
		return true
	}
	s.withdraw(e)
	return false
}

// give puts an entry into ristretto's queue, and reports false if that is full. If
// ristretto has an entry under this hash already, the new one replaces it at once.
//
// A nil entry makes room when the store is over its budget, which happens when updates grow
// values: ristretto evicts only for new keys. If ristretto has the hash, nil frees its old
// value at once; if not, nil is a new key for which ristretto evicts.
func (s *store) give(hash uint64, e *head) bool {
	if s.queue.length.Add(1) <= maxQueued && s.open().Set(hash, e, 0) {
		return true
	}
	s.queue.length.Add(-1)
	return false
}

// withdraw removes an entry that ristretto did not take from the queue. It gives ristretto
// a newer one of the same hash, if there is one.
func (s *store) withdraw(e *head) {
	for e != nil {
		next := s.queue.leave(e)
		e.letGo()
		if next != nil && s.give(next.hash, next) {
			return
		}
		e = next
	}
}

// settle notes that an entry has been stored in ristretto, or rejected. It gives ristretto a newer
// one of the same hash, if there is one.
func (s *store) settle(e *head) {
	if e == nil {
		return
	}
	if next := s.queue.leave(e); next != nil && !s.give(next.hash, next) {
		s.withdraw(next)
	}
}

// ristretto calls the following methods, from its goroutine and from inside of Set, and
// without holding a lock.

// dequeued returns the cost of an entry. ristretto calls it when the entry leaves ristretto's
// queue.
func (s *store) dequeued(e *head) int64 {
	s.queue.length.Add(-1)
	s.settle(s.queue.last) // ristretto is done with the entry before
	s.queue.last = e
	if e == nil {
		return perEntry
	}
	return int64(e.cost)
}

func (s *store) evicted(i *ristretto.Item[*head]) {
	if i.Value != nil {
		i.Value.of.evicted.Add(1)
	}
}

func (s *store) rejected(i *ristretto.Item[*head]) {
	if i.Value != nil {
		i.Value.of.rejected.Add(1)
		s.settle(i.Value)
	}
}

func (s *store) exited(e *head) {
	if e != nil {
		e.letGo()
	}
}

// close frees the entries. No other call may run.
func (s *store) close() {
	if inner := s.inner.Load(); inner != nil {
		inner.Close()
		s.queue.clear()
	}
}
