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
// right to store the result. That a key does not exist is a result like any other.
//
// For 30 s after its TTL (StaleWhileRevalidate) a value is served while it is refreshed. After
// that, and up to an hour after its TTL (StaleIfError), it is served only if its load fails, is
// refused or outlasts the caller's deadline. [Result.Stale] marks such a value. A key that is read often is
// refreshed before its TTL ends, see [Options.EarlyRefresh]. While Redis is unavailable, a value
// that was loaded less than a second ago is served, and older ones are loaded within the breaker's
// limit for degraded loads; if such a load fails or finds no place, the value that the process has
// kept is served.
//
// [Cache.GetMany] reads many keys. [Cache.With] makes a [Reader] with rules of its own ([Reads]): no
// value older than MaxAge, no load (NoLoad), no value from before a confirmed write of any process
// (SkipLocal), no value past its TTL (NoStale).
//
// # Writing
//
// Change rows in [Cache.Write], or call [Cache.Invalidate] after the commit. [Also] adds keys that
// only the transaction finds, such as the id that an INSERT makes. [ErrNotInvalidated] means that
// the change is committed and Redis has not confirmed its invalidation; with any other error of
// Write the transaction has failed, or has not run. A filter has to know a key before its row
// commits: Write, Also and [Cache.Set] add it, [Cache.Announce] adds keys of rows that are written
// elsewhere, and [Cache.KeepFilter] fills the filter. [Follow] invalidates the keys of rows that
// the database's own log reports as changed, for writers that do not use the cache or die before
// Invalidate.
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
//   - Every key in Redis has a TTL, and every value is checked when it is read.
//
// The cache does not guarantee freshness if a writer calls nothing, or an order between different
// keys, or an invalidation that Redis confirmed and then lost. [docs/consistency.md] has the whole
// contract, with each call and each bound.
//
// [docs/consistency.md]: https://github.com/levee-go/levee/blob/main/docs/consistency.md
package cache
