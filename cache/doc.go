// Package cache stands between a read-heavy service and its database, over Redis.
//
// A [Cache] is bound to the loader that reads its values, and then reads like a
// map:
//
//	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product"})
//	p, err := products.Get(ctx, 42)
//
// # The read path
//
//	Get ─▶ local tier ─▶ filter ─▶ Redis ─▶ flight ─▶ breaker ─▶ lease ─▶ loader ─▶ publish ─▶ local tier ─▶ answer
//
// A hit in the local tier costs no allocation and no clock call, a hit in Redis one
// read. The callers of one process who miss the same key share a flight. The
// flight that gets the key's lease in Redis asks the source, and the flights of other
// processes wait for it. The lease is both the mutex of the rebuild and the right to
// publish its result. That a key does not exist is a result like any other, with a TTL
// of its own.
//
// # Beyond the TTL
//
// After its TTL a value is served for StaleWhileRevalidate (30 s) while it is
// refreshed, and then, up to StaleIfError (1 h) after the TTL, only if its load fails
// or is refused, or when the caller's own deadline comes. [Result] marks it. A value that
// is read often is refreshed before its TTL ends, see [Options.EarlyRefresh]. An
// invalidation ends a value in any of these states, and nulls never live longer than
// [Options.NullTTL].
//
// While Redis is out of reach, a value that the process has loaded within the last second
// is served, marked stale. An older one is loaded if there is a place among the degraded
// loads; if there is none, or the load fails, a value that the process has kept in its
// local tier is served. In a cache without Redis a kept value is served until
// StaleWhileRevalidate ends, and is refreshed in the background past its TTL.
//
// # Writing
//
// A writer changes a row in [Cache.Write], or calls [Cache.Invalidate] after the commit.
// [Also] adds keys that only the transaction finds, such as the id that an INSERT makes.
// [ErrNotInvalidated] says that the change is made and not everywhere yet; with any other
// error of Write the transaction has failed, or not run.
// A writer that has the new value at hand may [Cache.Set] it. A filter has to know a key
// before its row commits: Write, Also and Set see to that, and [Cache.Announce] does for rows
// that are written elsewhere. [Cache.KeepFilter] fills it, and does so again now and then. For writers who know nothing of the cache, or die between
// commit and Invalidate, [Follow] invalidates what the database itself tells of its changes.
//
// # What is promised
//
//   - One lease per key: while Redis works, two loads of a key run at once only if an
//     invalidation came between, a writer holds the key, Rebuild.WaitBudget is spent,
//     or a loader outlives its timeout.
//   - No stale fill: after [Cache.Invalidate] has returned nil, no Get that starts
//     later gets from Redis, or from a rebuild under way anywhere, what was there
//     before. Values in the local tier of another process, and those that it is just
//     reading for it, follow with the message, normally within a few milliseconds.
//     When messages stop, they count for at most a second from their fill, as soon
//     as three heartbeats of a second each are missing; and never for longer than
//     [Options.Local] allows. After that a value answers only during an outage, in
//     place of an error, or for a caller who cannot wait any longer: marked stale, and
//     no later than StaleIfError after its TTL.
//   - Clear: after [Cache.Clear] has returned nil, no Get of the same process that
//     starts later gets what was loaded before. Other processes follow as the local
//     tier does, also with what stands in Redis.
//   - Deployments: old and new processes of a rolling deployment, and of its rollback,
//     may have Schemas that follow each other. What one invalidates, writes or sets
//     is dropped for both.
//   - Independence: a caller leaves when its context ends, and takes nobody with
//     it. A loader that panics or calls Goexit fails those who wait for it, and
//     nothing else.
//   - Bounded load: the source runs at most the breaker's number of loads at a
//     time, not counting those that loaders make of the same breaker, also when
//     Redis is down; the library never retries a load that failed.
//   - Honest errors: an outage never looks like [ErrNotFound], and an error of
//     Redis never comes out of Get.
//   - Finite life: everything written to Redis has a TTL, shortened at random so
//     that what was stored together does not expire together. It is never
//     lengthened.
//   - Binding: what is read from Redis is checked against its key, its schema and a
//     checksum. Anything else is a miss and is overwritten; but a key of another
//     Redis type is left alone, logged and counted, and the source answers for it.
//
// # What is not promised
//
//   - Freshness, if a writer calls none of Invalidate, Write and Set, and no feed is
//     followed. Then the TTL is the bound, and the stale windows beyond it.
//   - An invalidation that Redis acknowledged and lost in a failover, unless
//     Rebuild.WaitReplicas in [Options] is set, or that it did not confirm before
//     the process ended. Then, too.
//   - Any order between different keys, also between a value and one that a loader makes
//     of it: it gets the old one from the local tier for as long as any caller does.
//   - Mutual exclusion: beside the cases of "One lease per key", a process that stands
//     still for longer than its lease may load beside another, and during an outage
//     every process loads for itself. Only a load whose lease still stands publishes.
//   - That clocks which disagree do no harm at all. What a host stores whose clock is
//     ahead counts as new for as much longer: in a local tier never beyond its TTL, in
//     Redis until Redis, by its own clock, drops it after the TTL and the longer of
//     the two windows. What a host stores whose clock is behind is loaded once more.
//   - Protection from those who can write to Redis themselves.
//
// A cancellation that is not a deadline is noticed at the latest after
// [Options.RedisTimeout] while Redis is being read.
package cache
