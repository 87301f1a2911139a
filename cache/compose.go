package cache

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/flight"
)

// Composed values
//
// A loader may read other values by a cache, to make one of them: a page of its rows. The local tier
// follows another process's write with the message, so a row that is read there may be old for some
// milliseconds. A page that is made of it would be old for its whole TTL:
//
//	a Write of the row and the page       another process
//	drops both in Redis, and returns
//	                                      misses the page, and takes the lease
//	                                      takes the row from its memory: the old one
//	                                      stores the page
//	the message arrives and drops the row
//
// So reads with the context of a load ask Redis, which Write has told before it returned, as
// [Reads].SkipLocal has it, and look at what was cleared first, as a Clear is no more than a message to
// other processes. What they get in place of an error may be old all the same: a value that is made of it
// is not stored.

// plain is how a read without rules reads: nil, unless ctx is that of a load.
func (c *Cache[K, V]) plain(ctx context.Context) *want {
	if !flight.Loads() {
		return nil
	}
	return c.part(ctx)
}

func (c *Cache[K, V]) part(ctx context.Context) *want {
	if !c.fleet.Shared() || !flight.Composing(ctx) {
		return nil
	}
	return c.composing(ctx, Reads{})
}

// composing is how a read by rules reads, whose context may be that of a load.
func (c *Cache[K, V]) composing(ctx context.Context, rules Reads) *want {
	w := &want{Reads: rules, called: time.Now()}
	if c.fleet.Shared() && flight.Composing(ctx) {
		w.SkipLocal, w.part = true, true
		if err := c.fleet.LearnClears(ctx); err != nil {
			flight.Doubt(ctx)
		}
	}
	return w
}

// composes reports whether the answer of a read becomes a part of a value that is being loaded.
func (w *want) composes() bool { return w != nil && w.part }

// unstored keeps an entry out of Redis, and in this process for no longer than an error is held.
func (e *life) unstored(hold time.Duration) {
	e.expires, e.private, e.hard = e.created+max(hold, 0).Milliseconds(), true, true
}

// isUnstored reports whether unstored has been called with hold.
func (e *life) isUnstored(hold time.Duration) bool { return e.private && e.hard && e.ttl() <= hold }
