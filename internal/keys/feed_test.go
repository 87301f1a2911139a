package keys_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/levee-go/levee/internal/keys"
)

// The record of a feed and the lock of its follower share a slot, and feeds of different
// names share nothing.
func TestFeedNames(t *testing.T) {
	if got := keys.Feed("a{b}%"); got != "levee:f1:{a%7Bb%7D%25}" {
		t.Errorf("got %q", got)
	}
	if got := keys.Lock(keys.FeedLocks, keys.Mutex, "shop")[0]; got != "levee:f1:levee:l1:m:{shop}" {
		t.Errorf("got %q", got)
	}
	seen := map[string]string{}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.StringMatching(`(levee:l1:m|\}|\{|%7B|:|a){1,4}`), rapid.String()).Draw(t, "name")
		record, lock := keys.Feed(name), keys.Lock(keys.FeedLocks, keys.Mutex, name)[0]
		if name != "" && hashTag(record) != hashTag(lock) {
			t.Fatalf("%q and %q are in different slots", record, lock)
		}
		for _, key := range []string{record, lock} {
			if other, ok := seen[key]; ok && other != name {
				t.Fatalf("%q is a key of %q and of %q", key, name, other)
			}
			seen[key] = name
		}
	})
}
