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
//	Get ─▶ local? ─▶ filter? ─▶ redis? ─▶ rebuild ─▶ one flight per process ─▶ one lease per fleet ─▶ breaker ─▶ loader
//
// A hit in the local tier costs no allocation and no clock call, a hit in Redis one
// read. On a miss one caller of one process asks the source, under a lease in Redis
// that is both the mutex of the rebuild and the right to publish its result; all
// others wait for it. That a key does not exist is a result like any other, with a
// TTL of its own.
//
// # Beyond the TTL
//
// A value past its TTL still answers: for [Options.StaleWhileRevalidate] at once,
// while one process of the fleet refreshes it in the background, and for
// [Options.StaleIfError] in place of an error of the source, or when the caller cannot
// wait for the source. [Result] marks it. A value that is read often is refreshed
// before its TTL ends, see [Options.EarlyRefresh]. While Redis is out of reach, what the process has kept in its
// local tier answers in the same way, and is refreshed in the background. An
// invalidation ends a value in any of these states, and nulls never live longer than
// [Options.NullTTL].
//
// # Writing
//
// Who changes a row does it in [Cache.Write], or calls [Cache.Invalidate] when it
// has committed; who has the new value at hand may [Cache.Set] it. A filter has to
// know a key before its row commits: Write and Set see to that, and
// [Cache.Announce] does where the row is written elsewhere.
//
// # What is promised
//
//   - One rebuild: while Redis works, at most one load of a key runs in the whole
//     fleet, and in each process at most one whatever Redis does.
//   - No stale fill: after [Cache.Invalidate] has returned nil, no Get that starts
//     later gets from Redis, or from a rebuild under way anywhere, what was there
//     before. Values in the local tier of another process, and those that it is just
//     reading for it, follow with the message, normally within a few milliseconds.
//     When messages stop, they count for at most a second from their fill, as soon
//     as three heartbeats of a second each are missing; and never for longer than
//     [Options.Local] allows.
//   - Independence: a caller leaves when its context ends, and takes nobody with
//     it. A loader that panics or calls Goexit fails those who wait for it, and
//     nothing else.
//   - Bounded load: the source runs at most the breaker's number of loads at a
//     time, also when Redis is down; the library never repeats a load.
//   - Honest errors: an outage never looks like [ErrNotFound], and an error of
//     Redis never comes out of Get.
//   - Finite life: everything written to Redis has a TTL, shortened at random so
//     that what was stored together does not expire together. It is never
//     lengthened.
//   - Binding: what is read from Redis is checked against its key, its schema and a
//     checksum. Anything else is a miss and is overwritten.
//
// # What is not promised
//
//   - Freshness, if a writer calls none of Invalidate, Write and Set. Then the TTL is
//     the bound, and the stale windows beyond it.
//   - An invalidation that Redis acknowledged and lost in a failover, unless
//     Rebuild.WaitReplicas in [Options] is set, or that it did not confirm before
//     the process ended. Then, too.
//   - Any order between different keys.
//   - Mutual exclusion: a lease is lost when its process stands still for longer
//     than its life, and then two loads run; only one of them can publish.
//   - That clocks which disagree do no harm at all. What a host stores whose clock is
//     ahead counts as new for as much longer: in a local tier never beyond its TTL, in
//     Redis until Redis, by its own clock, drops it after the TTL and the longer of
//     the two windows. What a host stores whose clock is behind is loaded once more.
//   - Protection from those who can write to Redis themselves.
//
// A cancellation that is not a deadline is noticed at the latest after
// [Options.RedisTimeout] while Redis is being read.
package cache
