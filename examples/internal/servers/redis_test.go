package servers

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/keys"
)

// A filter's keys begin with levee's own prefix and not with the program's: they stayed on a real server for a week.
func TestCleanTakesAwayEverythingUnderThePrefixAndNothingElse(t *testing.T) {
	s, err := EmbeddedRedis("shop-1")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rdb := redis.NewClient(RedisOptions(s.Address))
	defer rdb.Close()
	for _, name := range []string{"shop-1", "else"} {
		f, err := bloom.Open(t.Context(), rdb, bloom.Options{Name: name, Capacity: 100, MaxTransaction: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Rebuild(t.Context(), func(yield func(string, error) bool) { yield("1", nil) }); err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // so that it makes nothing anew
		for _, key := range []string{
			name + ":1", keys.OfCache(name).Value(0, "1"), keys.OfCache(name).Lease("1"), keys.Feed(name), keys.Lock(keys.FeedLocks, keys.Mutex, name)[0],
		} {
			if err := rdb.Set(t.Context(), key, "", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := rdb.Keys(t.Context(), "*else*").Val()
	if err := s.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := rdb.Keys(t.Context(), "*").Val()
	slices.Sort(before)
	slices.Sort(after)
	if len(before) < 5 || !slices.Equal(after, before) {
		t.Errorf("left %q, want %q", after, before)
	}
}
