package follow

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

// A Cache is a cache of any types, as Run uses it. Pass a pointer, because it counts.
type Cache struct {
	Name    string
	Prefix  string                // Options.Prefix
	Redis   redis.UniversalClient // nil: none
	Logger  *slog.Logger
	Closing context.Context // ends with the cache

	Clear      func(ctx context.Context) error
	Invalidate func(ctx context.Context, ids []string) error
	ClearTags  func(ctx context.Context, tags []string) error
	Ensure     func(ctx context.Context, ids []string) error // adds ids to the filter, which may know them
	// Distrust makes the filter abstain until it is rebuilt, because it has missed inserted rows.
	Distrust func(ctx context.Context) error
	Deaf     bool // there is a filter, and Distrust can do nothing

	batches, changes, failures, lost atomic.Uint64

	owedSince atomic.Int64 // Unix nanoseconds since when its filter does not know rows that are followed; 0: it does

	behind atomic.Pointer[time.Time] // until when rows may not have been followed; nil: never was

	mu       sync.Mutex // guards what follows
	readings []*reading
	calls    int             // running calls of Run
	gaveUp   context.Context // context of the last call of Run that has returned; nil: none has
}

// want counts a call of Run, until end is called.
func (c *Cache) want(ctx context.Context) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.calls--
		c.gaveUp = ctx
	}
}

// wanted reports whether the user expects a feed to be followed. The caller holds c.mu.
func (c *Cache) wanted() bool {
	return c.Closing.Err() == nil && (c.calls > 0 || c.gaveUp != nil && c.gaveUp.Err() == nil)
}

// catchUp is how long after Redis has kept a process from following some process may take to have followed what
// happened meanwhile: two pauses between tries, a lease, and as long again to read.
const catchUp = 2*longestPause + 2*followLease

// Behind reports whether rows may exist that no follower has told the filter of, since Redis has lately kept
// this process from following, and so all others too.
func (c *Cache) Behind() bool {
	until := c.behind.Load()
	return until != nil && time.Now().Before(*until)
}

// begin records that a feed is being read for the cache, until end is called.
func (c *Cache) begin(r *reading) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readings = append(c.readings, r)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.readings = slices.DeleteFunc(c.readings, func(other *reading) bool { return other == r })
	}
}

// Stats returns what Run has done for the cache.
func (c *Cache) Stats() feed.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := feed.Stats{
		Wanted: c.wanted(), Following: len(c.readings) > 0,
		Batches: c.batches.Load(), Changes: c.changes.Load(), Failures: c.failures.Load(), Lost: c.lost.Load(),
	}
	for _, r := range c.readings {
		s.Behind += r.behind.Load()
		s.Lag = max(s.Lag, r.lag())
	}
	if since := c.owedSince.Load(); since != 0 {
		s.Lag = max(s.Lag, time.Since(time.Unix(0, since)))
	}
	return s
}

// A reading measures how far behind a follower is.
type reading struct {
	since  atomic.Int64 // Unix nanoseconds of the commit of the batch that is being processed; 0: none
	late   atomic.Int64 // nanoseconds from the commit of the last batch until it was processed; 0: the database held no more
	behind atomic.Int64
}

// began records a batch that is to be processed.
func (r *reading) began(b feed.Batch) {
	r.behind.Store(max(b.Behind, 0))
	if len(b.Changes) > 0 && !b.Committed.IsZero() {
		r.since.Store(b.Committed.UnixNano())
	}
}

// ended records that a batch is processed.
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
