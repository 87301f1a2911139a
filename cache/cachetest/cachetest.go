// Package cachetest helps to test code that has a *cache.Cache: a cache that ends with its test,
// a [Store] in place of the database that counts loads and fails when told to, and
// [Invalidated], which says what a Write has invalidated.
//
//	func TestRename(t *testing.T) {
//		var rows cachetest.Store[int64, Product]
//		rows.Put(1, Product{Name: "lamp"})
//		products := cachetest.New(t, nil, rows.Load, cache.Options{TTL: time.Minute})
//		service := catalog.New(&rows, products) // the code under test
//		…
//	}
//
// Inside a testing/synctest bubble an hour of TTL passes at once; make the cache in the bubble.
//
// Import the package in tests only: it imports package testing.
package cachetest

import (
	"cmp"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
)

// New makes a cache of the values that load reads, as [cache.New] does, and closes it at the end
// of the test. It fails the test if cache.New returns an error.
//
// If rdb is nil, the cache works without Redis, and each loaded value is encoded and decoded by
// the cache's codec before it is cached, so that a test sees a value as another process would
// read it from Redis, without what JSON loses of it. A value that the codec cannot encode or
// decode is an error of its load; over Redis the caller of that load would get it, and other
// processes would load it again. Values given to Cache.Set are not encoded.
//
// Two caches of one Name over one Redis are two processes: give New the same rdb twice. It may be
// a client of a miniredis or of a real Redis. For a Redis that outlives the test, set
// Options.Prefix to a text of its own, such as rand.Text(), or the test finds the values of its
// last run.
//
// These fields of o have other defaults than in cache.New:
//
//   - Name, without Redis: "test"
//   - Jitter: none, so that a TTL in a synctest bubble is exact
//   - RedisTimeout: 5 s, so that a busy machine is not taken for an outage of Redis; set it in a
//     test of an outage
//   - Logger: writes to the output of the test, see testing.TB.Output
func New[K comparable, V any](t testing.TB, rdb redis.UniversalClient, load cache.Loader[K, V], o cache.Options) *cache.Cache[K, V] {
	t.Helper()
	return NewFrom(t, rdb, cache.Source[K, V]{Load: load}, o)
}

// NewFrom makes a cache of src for a test. See [New].
func NewFrom[K comparable, V any](t testing.TB, rdb redis.UniversalClient, src cache.Source[K, V], o cache.Options) *cache.Cache[K, V] {
	t.Helper()
	if rdb == nil {
		src = encoded(src, o.Codec)
		o.Name = cmp.Or(o.Name, "test")
	}
	o.Jitter = cmp.Or(o.Jitter, cache.Off)
	o.RedisTimeout = cmp.Or(o.RedisTimeout, 5*time.Second)
	if o.Logger == nil {
		var level slog.LevelVar
		t.Cleanup(func() { level.Set(math.MaxInt) }) // after Close: package testing may panic if somebody writes then
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: &level}))
	}
	c, err := cache.NewFrom(rdb, src, o)
	if err != nil {
		t.Fatalf("cachetest: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() }) // it returns nil
	return c
}
