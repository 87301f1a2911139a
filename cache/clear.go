package cache

import "context"

// Clear ends all values and nulls of the cache, in all processes: after a bad import, say, or
// when a change feed has lost its position. It writes one key of Redis, however many values there
// are. The values stay in Redis until their TTL ends but are no longer served; they are loaded
// anew, within the limits of the breaker.
//
// When Clear returns nil, no Get of this process that starts afterwards gets a value that was
// loaded before, from any tier. Other processes follow as soon as the message arrives, usually
// within milliseconds, also for values in Redis. A process that receives no messages stops
// serving both within a second of noticing that. (Invalidate is quicker in this: when it returns,
// the key is gone from Redis for every process.) For Options.ReplicaLag no loaded value is
// stored.
//
// If Redis loses the clear while no process that knows of it is running, processes that start
// afterwards read values without tags from before the Clear, until their TTL.
//
// If the error matches ErrClosed, nothing was done. Otherwise it is ErrNotInvalidated: levee
// repeats the clear in the background until Redis confirms it, and until then this process does
// not call Redis, unless the cause is somebody else's key under the name of the epoch. Clear does
// its work even if ctx has ended, and waits for RedisTimeout at most.
func (c *Cache[K, V]) Clear(ctx context.Context) error {
	return c.writer.clear(context.WithoutCancel(ctx))
}

// ClearTags ends the values that have one of tags, see [Source.Tags], in all processes: the
// values of a tenant who leaves, say, or of a brand that an import has changed. It is one command
// to Redis, however many values there are. Nulls have no tags. For these values the guarantees
// and the errors of [Cache.Clear] apply; while a ClearTags is not confirmed, this process does
// not call Redis, as after a Clear.
//
// The tags of a cache share 65,536 counters: a ClearTags also ends the values of, by chance, one
// other tag in 65,536, which are loaded anew.
//
// A cache needs no list of its tags. Redis stores a counter for each tag that was cleared, some
// 60 bytes, and each process uses half a megabyte from the first ClearTags on. If Redis loses the
// counters while no process that knows them can put them back, no value with tags that was loaded
// before is served.
func (c *Cache[K, V]) ClearTags(ctx context.Context, tags ...string) error {
	if c.closed() {
		return ErrClosed
	}
	return c.writer.endTags(context.WithoutCancel(ctx), digests(tags), true)
}

// Tagged says that a transaction changes values that have one of tags. When the transaction has
// succeeded, [Write] clears the tags, as [Cache.ClearTags] does. When it has failed, the tags
// expire: old values are served, marked stale, if a load fails, and for no longer than
// StaleIfError past their TTL. Tagged does not hold keys during the transaction: values loaded
// meanwhile end with the clear. If a process dies between the commit and the clear, the old
// values stay until their TTL.
func (c *Cache[K, V]) Tagged(tags ...string) Changes {
	return Changes{writer: &c.writer, tags: digests(tags)}
}
