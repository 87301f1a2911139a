package cache_test

import (
	"context"
	"errors"
	"testing"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A scraper asks for each absent key once. Without the second-miss rule Redis
// holds a null for every one of them.
func TestAFloodOfDistinctAbsentKeysLeavesNothingInRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	c, err := cache.New(rdb, func(context.Context, int64) (string, error) { return "", cache.ErrNotFound },
		cache.Options{Name: "flood"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for key := range int64(500) {
		if _, err := c.Get(t.Context(), key); !errors.Is(err, cache.ErrNotFound) {
			t.Fatal(err)
		}
	}
	if n := rdb.DBSize(t.Context()).Val(); n > 20 { // a few are taken for known
		t.Errorf("Redis holds %d keys", n)
	}
}
