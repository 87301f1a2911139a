package cache

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache/feed"
)

// FollowStats counts what [Follow] has done for a cache in this process. Of a fleet one
// process reads a feed, so add up or take the highest over all processes.
type FollowStats struct {
	// Wanted says that [Follow] was called for the cache, and that neither its context nor
	// the cache has ended since. It stays so when Follow has given up.
	Wanted bool

	Following bool   // this process reads a feed for the cache
	Batches   uint64 // of a feed that were dealt with, whether or not they concerned the cache
	Changes   uint64 // of rows that concerned the cache
	Failures  uint64 // of the feed, of Redis or of a route, that were tried again
	Lost      uint64 // positions that the feed had lost, after which the cache was cleared
	// Lag is how long ago the changes were committed that are being dealt with, or were
	// last if the database holds more, as far as the clocks of host and database agree. 0
	// when all is dealt with.
	Lag time.Duration
	// Behind is how many bytes of its log the database holds that are not dealt with,
	// or rows of an outbox, when the feed told last. 0 if it does not tell.
	Behind int64
}

// feeds is what a cache has to do with feeds: what Follow needs to know of it, and what it
// has counted.
type feeds struct {
	name    string
	rdb     redis.UniversalClient // nil: none
	logger  *slog.Logger
	closing context.Context

	batches, changes, failures, lost counter

	mu       sync.Mutex // guards what follows
	readings []*reading
	calls    int             // of Follow, that run
	gaveUp   context.Context // of the last call that has returned without being told to; nil: none has
}

func (c *Cache[K, V]) feeds() *feeds { return &c.fed }

// want notes a call of Follow, until end.
func (f *feeds) want(ctx context.Context) (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.calls--
		f.gaveUp = ctx
	}
}

// wanted reports whether somebody counts on a feed being followed. f.mu is held.
func (f *feeds) wanted() bool {
	return f.closing.Err() == nil && (f.calls > 0 || f.gaveUp != nil && f.gaveUp.Err() == nil)
}

// begin notes that a feed is being read for the cache, until end.
func (f *feeds) begin(r *reading) (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readings = append(f.readings, r)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.readings = slices.DeleteFunc(f.readings, func(other *reading) bool { return other == r })
	}
}

func (f *feeds) stats() FollowStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := FollowStats{
		Wanted: f.wanted(), Following: len(f.readings) > 0,
		Batches: f.batches.Load(), Changes: f.changes.Load(), Failures: f.failures.Load(), Lost: f.lost.Load(),
	}
	for _, r := range f.readings {
		s.Behind += r.behind.Load()
		s.Lag = max(s.Lag, r.lag())
	}
	return s
}

// A reading is how far behind a follower is.
type reading struct {
	since  atomic.Int64 // Unix nanoseconds of the commit of the batch that is being dealt with; 0: none
	late   atomic.Int64 // nanoseconds from the commit of the last batch until it was dealt with; 0: nothing is behind it
	behind atomic.Int64
}

// began notes a batch that is to be dealt with.
func (r *reading) began(b feed.Batch) {
	r.behind.Store(max(b.Behind, 0))
	if len(b.Changes) > 0 && !b.Committed.IsZero() {
		r.since.Store(b.Committed.UnixNano())
	}
}

// ended notes that a batch is dealt with.
func (r *reading) ended(b feed.Batch) {
	late := int64(0)
	if since := r.since.Swap(0); since != 0 && b.Behind > 0 {
		late = time.Now().UnixNano() - since
	}
	r.late.Store(late)
}

func (r *reading) lag() time.Duration {
	if since := r.since.Load(); since != 0 {
		return time.Since(time.Unix(0, since))
	}
	return time.Duration(r.late.Load())
}
