package cache

import "context"

// Clear ends what is known of all keys, values and nulls, in all processes: after a bad
// import, say, or when a feed of changes has lost its place. It writes one key of Redis,
// however many values there are; those end by their TTL and do not count meanwhile.
// Everything is loaded anew then, within the limits of the breaker.
//
// When it returns nil, no Get of this process that starts afterwards gets what was loaded
// before, from wherever it comes. Other processes follow as soon as the message arrives,
// usually within milliseconds, also with what stands in Redis. A process that no messages
// reach answers with neither later than a second after it has noticed that they do not.
// (An Invalidate is quicker in that: what it drops is gone from Redis for everybody when
// it returns.) For Options.ReplicaLag nothing that is loaded is kept.
//
// An error matches ErrClosed, and then nothing was done, or ErrNotInvalidated. What is not
// confirmed is tried again in the background until it is; until then this process leaves
// Redis alone, unless what keeps Redis from it is somebody else's key under the name of the
// epoch. Clear does its work also when ctx has ended, and waits for RedisTimeout at most.
func (c *Cache[K, V]) Clear(ctx context.Context) error {
	if _, err := c.check(); err != nil {
		return err
	}
	err := c.change(context.WithoutCancel(ctx), "clear", nil, c.fleet.Clear)
	c.local.Flush() // also what is not confirmed
	c.flights.ForgetAll()
	return err
}

// cleared reports whether a Clear has overtaken the load of e.
func (c *Cache[K, V]) cleared(e *entry[V]) bool { return e.epoch < c.fleet.Epoch() }
