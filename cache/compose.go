package cache

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/flight"
)

// Composed values
//
// A loader may make its value of other cached values: a page of its rows. The local tier learns of
// another process's write by a message, so a row that is read there may be old for some
// milliseconds. A page made of that row would be old for its whole TTL:
//
//	a Write of the row and the page       another process
//	drops both in Redis, and returns
//	                                      misses the page, and takes the lease
//	                                      takes the row from its memory: the old one
//	                                      stores the page
//	the message arrives and drops the row
//
// So a read with the context of a load goes to Redis, as with [Reads].SkipLocal, because Write changes
// Redis before it returns. First it reads the clears, since a Clear is only a message to other
// processes. A fallback may be old all the same, and so may a row from a replica of the source within
// ReplicaLag of its write: a value that is made of one is not stored.

// plain returns the rules of a read without rules: nil, unless ctx is the context of a load.
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

// composing returns the rules of a read by rules, whose context may be the context of a load.
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
