package inside

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/logonce"
)

// An Audit is a cache that can be audited.
type Audit[K comparable, V any] struct {
	ReplicaLag time.Duration
	ID         func(K) (string, error)
	Closing    context.Context // ends with the cache
	Log        *logonce.Log
	Counts     *Counts
	Shadow     *ShadowCounts
	Stale      func(age time.Duration) // counts a stale value
	// Sample begins to note the keys that are read, until stop. pick is nil if they are noted already.
	Sample     func() (pick func() (K, bool), stop func())
	Look       func(ctx context.Context, key K) (Look[V], error)
	Encode     func(V) ([]byte, error)
	Invalidate func(ctx context.Context, keys ...K) error
}

// A Look is what the cache serves for a key, and what the source has.
type Look[V any] struct {
	ID     string
	There  bool // a Get would be answered at once; else the source was not asked
	Null   bool // Get would answer that there is no such key; else with Cached
	Cached V
	Stored any           // tells the answer from a later one with the same bytes, by ==
	Age    time.Duration // of Cached
	Source V
	Gone   bool // the source has no such key
}

// Counts counts what an audit finds.
type Counts struct{ Compared, Raced, Stale, Healed, Failed atomic.Uint64 }

// ShadowCounts are cache.ShadowStats.
type ShadowCounts struct {
	Local, Redis, Null, Filter, Loaded, Stale, Failed, Skipped atomic.Uint64
	Equal, Raced, Differs                                      atomic.Uint64
}

// A Sample is keys that were read lately.
type Sample[K comparable] struct {
	mu   sync.Mutex // guards what follows
	keys []K
	next int
}

const sampleSize = 4096

// Note adds a key, in place of the oldest. A caller who finds another at it passes.
func (s *Sample[K]) Note(key K) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if len(s.keys) < sampleSize {
		s.keys = append(s.keys, key)
		return
	}
	s.keys[s.next] = key
	s.next = (s.next + 1) % sampleSize
}

// Pick returns one of the keys at random.
func (s *Sample[K]) Pick() (key K, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) == 0 {
		return key, false
	}
	return s.keys[rand.IntN(len(s.keys))], true
}
