package cachetest

import (
	"errors"
	"testing"

	"github.com/levee-go/levee/cache"
)

// Invalidated reads keys through c, calls do, and returns those of keys that c would have to load
// again, in the order of keys: the keys that do has invalidated, expired or cleared, by a Write,
// for example. c must be the cache that do writes with: other processes follow by a message, some
// milliseconds later.
//
// A key that do has read again after the write counts as cached; count the loads of such a key
// instead. Without Redis, keys that do not exist may be among keys, since their absence is cached
// too. Over Redis their absence may be forgotten at any time: the first miss of a key stays in
// the process.
//
// Invalidated fails the test if a key cannot be read, or is not cached before it calls do.
func Invalidated[K comparable, V any](t testing.TB, c *cache.Cache[K, V], keys []K, do func()) []K {
	t.Helper()
	if _, err := c.GetMany(t.Context(), keys); err != nil {
		t.Fatalf("cachetest: %v", err)
	}
	if never := uncached(t, c, keys); len(never) > 0 {
		t.Fatalf("cachetest: these keys are not cached even after a read: %v", never)
	}
	do()
	return uncached(t, c, keys)
}

// uncached returns the keys for which c holds neither a value nor the knowledge that there is none.
func uncached[K comparable, V any](t testing.TB, c *cache.Cache[K, V], keys []K) (missing []K) {
	t.Helper()
	held := c.With(cache.Reads{NoLoad: true})
	for _, key := range keys {
		switch _, err := held.Get(t.Context(), key); {
		case errors.Is(err, cache.ErrNotCached):
			missing = append(missing, key)
		case err != nil && !errors.Is(err, cache.ErrNotFound):
			t.Fatalf("cachetest: looking for key %v: %v", key, err)
		}
	}
	return missing
}
