// Package cache is a two-level read-through cache: process memory and Redis in front of a
// database.
//
// A [Cache] is bound to the loader that reads its values, and then reads like a map:
//
//	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product"})
//	p, err := products.Get(ctx, 42)
//
// # Reading
//
//	Get ─▶ local tier ─▶ filter ─▶ Redis ─▶ flight ─▶ breaker ─▶ lease ─▶ loader ─▶ publish ─▶ local tier ─▶ answer
//
// A hit in the local tier costs no allocation and no clock call, a hit in Redis one read.
// Callers of one process that miss the same key share a flight; of the flights of all
// processes one gets the key's lease in Redis and calls the loader. The lease is also the
// right to store the result. Absence of a key is a result like any other.
//
// After its TTL a value is served for StaleWhileRevalidate (30 s) while it is refreshed, and
// then, up to StaleIfError (1 h) after the TTL, only if its load fails or is refused, or when
// the caller's own deadline comes. [Result] marks it. A key that is read often is refreshed
// before its TTL ends, see [Options.EarlyRefresh]. While Redis is away, values of
// the last second are served, the others are loaded within the breaker's limit for degraded loads,
// and an older value that the process has kept is served if its load fails or finds no place.
//
// [Cache.GetMany] reads many keys. [Cache.With] makes a [Reader] that keeps to [Reads]: a value no
// older than MaxAge, no load (NoLoad), the order of writes of all processes (SkipLocal), nothing
// past its TTL (NoStale).
//
// # Writing
//
// Change rows in [Cache.Write], or call [Cache.Invalidate] after the commit. [Also] adds keys that
// only the transaction finds, such as the id that an INSERT makes. [ErrNotInvalidated] means that
// the change is committed and Redis has not confirmed its invalidation; with any other error of
// Write the transaction has failed, or has not run. A filter has to know a key before its row
// commits: Write, Also and [Cache.Set] tell it, [Cache.Announce] does for rows that are written
// elsewhere, and [Cache.KeepFilter] fills it. [Follow] invalidates what a database's own log
// reports, for writers that do not use the cache or die before Invalidate.
//
// # Guarantees
//
//   - One lease per key: while Redis works, two loads of a key run at once only if an
//     invalidation came between, a writer holds the key, Rebuild.WaitBudget is spent, or a
//     loader outlives its timeout.
//   - No stale fill: after [Cache.Invalidate] or [Cache.Write] has returned nil, no Get that
//     starts later, in any process, gets the old value from Redis or from a rebuild. Local tiers
//     of other processes follow with the message, normally within milliseconds; without
//     messages their entries end within seconds.
//   - Bounded load: no more loads than the breaker allows run in a process, also when Redis is
//     down. A failed load is never retried.
//   - Honest errors: an outage never looks like [ErrNotFound], and an error of Redis never comes
//     out of Get.
//   - Everything in Redis has a TTL, and is checked when it is read.
//
// Not guaranteed are freshness without any call of a writer, order between different keys, and
// an invalidation that Redis confirmed and then lost. The whole contract, with each call and each
// bound, is [docs/consistency.md].
//
// [docs/consistency.md]: https://github.com/levee-go/levee/blob/main/docs/consistency.md
package cache
