package cache_test

import (
	"fmt"

	"github.com/levee-go/levee/internal/keys"
)

// Tests take the names of keys in Redis from here: a name that they spelled themselves was
// of no key any more after the layout had changed, and "it is not there" was always true.

// valueKey names the value of a key of the cache "test", which most rigs have.
func valueKey(id any) string { return valueKeyOf("test", id) }

func valueKeyOf(cache string, id any) string { return keys.OfCache(cache).Value(0, fmt.Sprint(id)) }

func leaseKey(id any) string { return keys.OfCache("test").Lease(fmt.Sprint(id)) }

func clearsKey() string { return keys.OfCache("test").Clears() }

// bookmarkKey names how far the feed "shop" has been followed.
func bookmarkKey() string { return keys.Feed("shop") }
