package inside

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/logonce"
)

// An Audit is what package audit needs of a cache.
type Audit[K comparable, V any] struct {
	ReplicaLag time.Duration
	ID         func(K) (string, error)
	Closing    context.Context // ends with the cache
	Log        *logonce.Log
	Counts     *Counts
	Shadow     *ShadowCounts
	Stale      func(age time.Duration) // counts a stale value
	// Sample starts recording the keys that are read, until stop is called. pick is nil if they
	// are recorded already.
	Sample     func() (pick func() (K, bool), stop func())
	Look       func(ctx context.Context, key K) (Look[V], error)
	Served     func(ctx context.Context, key K) (Look[V], error) // without Source and Gone
	Absent     func(V, error) bool                               // whether a loader that returned these has no such key
	Clone      func(V) V                                         // Source.Clone, if there is one
	Encode     func(V) ([]byte, error)
	Invalidate func(ctx context.Context, keys ...K) error
	Ledger     func() Ledger[K, V]
}

// A Look is the value that the cache serves for a key, and the value in the source.
type Look[V any] struct {
	ID     string
	There  bool // a Get would return Cached or a null at once; otherwise the source was not read
	Null   bool // Get would return that the key does not exist; otherwise Cached
	Cached V
	Stored any           // differs, by ==, from the Stored of a later answer with the same bytes
	Age    time.Duration // age of Cached
	Source V
	Gone   bool // the source does not have the key
}

// Counts counts the results of an audit.
type Counts struct{ Compared, Raced, Stale, Healed, Failed atomic.Uint64 }

// ShadowCounts are the counters of cache.ShadowStats.
type ShadowCounts struct {
	Local, Redis, Null, Filter, Loaded, Stale, Failed, Skipped atomic.Uint64
	Equal, Raced, Unjudged, Differs                            atomic.Uint64
}

// A Sample holds keys that were read lately.
type Sample[K comparable] struct {
	mu   sync.Mutex // guards what follows
	keys []K
	next int
}

const sampleSize = 4096

// Note adds a key, in place of the oldest one. It does nothing if another goroutine is using s.
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
