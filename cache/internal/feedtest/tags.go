package feedtest

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// TheListsOfAGroupFollow checks that lists which are cached whole, in several orders, follow the rows that enter,
// leave and change their group, in a process that reads the feed and in another. The group of a row of the table
// product is its column slug, which f reports; table is its name in the feed.
func TheListsOfAGroupFollow(t *testing.T, f feed.Feed, table string, exec func(sql ...string), number func(sql string) string) {
	exec("INSERT INTO product VALUES (1, 'a', ''), (2, 'a', ''), (3, 'b', ''), (4, 'c', '')")
	redis := redistest.Start(t)
	var untouched atomic.Int32 // loads of c
	process := func() *cache.Cache[string, string] {
		c, err := cache.NewFrom(redis.Client(t), cache.Source[string, string]{
			Load: func(_ context.Context, list string) (string, error) { // stands for a query with an ORDER BY
				group, _, _ := strings.Cut(list, " ")
				if group == "c" {
					untouched.Add(1)
				}
				return number("SELECT count(*) FROM product WHERE slug = '" + group + "'"), nil
			},
			Tags: func(list, _ string) []string {
				group, _, _ := strings.Cut(list, " ")
				return []string{"group:" + group}
			},
		}, cache.Options{Name: "lists", RedisTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	one, other := process(), process()
	ctx, cancel := context.WithCancel(t.Context())
	var follower sync.WaitGroup
	defer follower.Wait()
	defer cancel()
	follower.Go(func() {
		_ = cache.Follow(ctx, f, one.RouteTags(table, func(row feed.Row) ([]string, error) {
			slug, err := row.Text("slug")
			return []string{"group:" + slug}, err
		}))
	})
	redistest.Eventually(t, 30*time.Second, "the feed is followed", func() bool { return one.Stats().Follow.Following })

	shows := func(what, a, b string) {
		t.Helper()
		want := map[string]string{"a by name": a, "a by price": a, "b by name": b, "c by name": "1"}
		for _, c := range []*cache.Cache[string, string]{one, other} {
			redistest.Eventually(t, 30*time.Second, what, func() bool {
				for list, n := range want {
					if got, err := c.Get(ctx, list); err != nil || got != n {
						return false
					}
				}
				return true
			})
		}
	}
	shows("the lists are cached", "2", "1")
	loads := untouched.Load()
	exec("UPDATE product SET slug = 'b' WHERE id = 1")
	shows("a row has moved from a to b", "1", "2")
	exec("INSERT INTO product VALUES (5, 'a', '')")
	shows("a has one more", "2", "2")
	exec("DELETE FROM product WHERE slug = 'b'")
	shows("b has none", "2", "0")
	if n := untouched.Load(); n != loads {
		t.Errorf("the list of a group that has not changed was loaded %d times more", n-loads)
	}
}
