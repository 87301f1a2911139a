package cache

import "context"

// Clear ends what is known of all keys, values and nulls, in all processes: after a bad
// import, say, or when a feed of changes has lost its place. It writes one key of Redis,
// however many values there are; those end by their TTL and do not count meanwhile.
// Everything is loaded anew then, within the limits of the breaker.
//
// When it returns nil, no Get of this process that starts afterwards gets what was loaded
// before, from wherever it comes. Other processes follow as soon as the message arrives,
// usually within milliseconds, also with values in Redis. A process that receives no
// messages stops serving both within a second of noticing it.
// (An Invalidate is quicker in that: what it drops is gone from Redis for everybody when
// it returns.) For Options.ReplicaLag nothing that is loaded is kept.
//
// Should Redis lose what was cleared while no process that knows it is running, processes that
// start afterwards read values without tags from before the Clear, until their TTL.
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

// ClearTags ends the values that have one of tags, see [Source.Tags], in all processes: those
// of a tenant who leaves, say, or of a brand that an import has changed. It is one command
// to Redis, however many values there are. Nulls have no tags. What is promised is what
// [Cache.Clear] promises, of these values; so are the errors, and while a ClearTags is not
// confirmed this process leaves Redis alone, as after a Clear.
//
// The tags of a cache share 65,536 counters: by chance a ClearTags ends the values of one
// other tag in 65,536 too, which are loaded anew.
//
// A cache needs no list of its tags. Redis holds a counter for each tag that was cleared,
// some 60 bytes, and each process half a megabyte from the first ClearTags on. Should Redis
// lose the counters while no process that knows them can put them back, no value with tags that was
// loaded before counts.
func (c *Cache[K, V]) ClearTags(ctx context.Context, tags ...string) error {
	if _, err := c.check(); err != nil {
		return err
	}
	return c.clearTags(context.WithoutCancel(ctx), digests(tags))
}

func (c *Cache[K, V]) clearTags(ctx context.Context, tags []uint32) error {
	return c.changeTags(ctx, func(ctx context.Context) error { return c.fleet.ClearTags(ctx, tags...) })
}

func (c *Cache[K, V]) changeTags(ctx context.Context, do func(context.Context) error) error {
	err := c.change(ctx, "clear", nil, do)
	if err != nil { // when it happened is not known
		c.local.Flush()
	}
	return err
}

// Tagged says that a transaction changes values that have one of tags: [Write] clears the
// tags when the transaction has succeeded, [Cache.ClearTags] tells how far that goes. When it has failed
// they expire: the old values are served, marked stale, if a load fails, and for no longer than
// StaleIfError past their TTL. Nothing is
// held meanwhile: values loaded during the transaction end with the clear. A process that dies between
// the commit and the clear leaves the old values until their TTL.
func (c *Cache[K, V]) Tagged(tags ...string) Changes {
	return Changes{cache: c, tags: digests(tags)}
}

// endTags clears tags after a transaction that has succeeded, and expires them after one that failed.
func (c *Cache[K, V]) endTags(ctx context.Context, tags []uint32, succeeded bool) error {
	if succeeded || c.windows.fallback == 0 {
		return c.clearTags(ctx, tags)
	}
	return c.changeTags(ctx, func(ctx context.Context) error { return c.fleet.ExpireTags(ctx, tags...) })
}

// cleared reports whether a Clear or a ClearTags, or the expiry of a tag, has overtaken the load of e.
func (c *Cache[K, V]) cleared(e *entry[V]) bool {
	return c.fleet.Cleared(e.epoch, e.tags()) || c.fleet.Expired(e.epoch, e.tags())
}

// overtaken reports whether a ClearTags has ended a value that the local tier has: it drops
// what an Invalidate or a Clear ends by itself. Before the first ClearTags a hit does not call it:
// a look at a number costs nothing that can be measured, a call 1 ns of 16.
//
// A value is compared with its tags once for each ClearTags. The mark for that is the number of
// clears, and not the time of the latest: this process may learn of its own clear before it
// learns of an earlier one of another process.
func (c *Cache[K, V]) overtaken(e *entry[V]) bool {
	clears := c.tagClears.Load()
	if e.more == nil || e.more.looked.Load() == clears {
		return false
	}
	if c.cleared(e) {
		c.counts.overtaken.Add(1)
		return true
	}
	e.more.looked.Store(clears)
	return false
}
