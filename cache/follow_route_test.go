package cache_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// A route fails: the error names the table and the cause, and the position stays. The change is
// handled as soon as the route works.
func TestARouteThatFailsKeepsThePosition(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		keys func(feed.Row) ([]int64, error)
		row  feed.Change
		says string
	}{
		"a column that is not there": {
			keys: func(row feed.Row) ([]int64, error) { id, err := row.Int("product_id"); return []int64{id}, err },
			says: `the feed tells no column \"product_id\"`,
		},
		"a panic":         {keys: func(feed.Row) ([]int64, error) { panic("no such luck") }, says: "no such luck"},
		"a Goexit":        {keys: func(feed.Row) ([]int64, error) { runtime.Goexit(); return nil, nil }, says: "Goexit"},
		"an error":        {keys: func(feed.Row) ([]int64, error) { return nil, errors.New("not today") }, says: "not today"},
		"two key columns": {row: feed.Change{Table: "product", Kind: feed.Updated, New: row(1, ""), Key: []string{"id", "slug"}}, says: "primary key has 2 columns"},
		"no key":          {row: feed.Change{Table: "product", Kind: feed.Updated, New: row(1, "")}, says: "primary key has 0 columns"},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			r := onServer(t, server, cell{redis: "real"})
			source, db := newRows(r, 1), newLedger()
			var log redistest.Log
			c := open(r, source.source(), logged(&log))
			var healed atomic.Bool
			keys := test.keys
			if keys != nil {
				keys = func(row feed.Row) ([]int64, error) {
					if healed.Load() {
						id, err := row.Int("id")
						return []int64{id}, err
					}
					return test.keys(row)
				}
			}
			stop := follows(r, db, c, c.Route("product", keys))
			c.gives(r, 1, "v1")
			source.put(1, "v2")
			change := test.row
			if change.Table == "" {
				change = updated(1)
			}
			db.commit(change)
			r.eventually("it is tried again", func() bool { return c.Stats().Follow.Failures >= 3 })
			if n := db.done(); n != 0 {
				r.Errorf("%d transactions are confirmed", n)
			}
			log.Await(t, "following a feed has failed")
			if text := log.String(); !strings.Contains(text, `table \"product\"`) || !strings.Contains(text, test.says) || strings.Count(text, "following a feed has failed") != 1 {
				r.Errorf("the log says\n%s", text)
			}
			healed.Store(true)
			if keys == nil {
				stop()
				following(r, db, c.Route("product", func(row feed.Row) ([]int64, error) { return []int64{1}, nil }))
				return // it begins in the present: nothing was confirmed before
			}
			db.confirms(r, 1)
			c.gives(r, 1, "v2")
		})
	}
}

// A row moves from one key to another, which changes the values of both. Defect: only the new row
// is looked at.
func TestARowThatMovesDropsBothKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db := newRows(r, 1), newLedger()
	values := map[string]string{"old": "v1", "other": "v1"}
	var mu sync.Mutex
	products := open(r, source.source())
	bySlug := open(r, cache.Source[string, string]{Load: func(_ context.Context, slug string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if v, ok := values[slug]; ok {
			return v, nil
		}
		return "", cache.ErrNotFound
	}}, func(o *cache.Options) { o.Name, o.Filter = "slug", nil })
	follows(r, db, products, products.Route("product", nil), bySlug.Route("product", slugs))
	bySlug.gives404(r, "new")
	bySlug.gives404(r, "new") // in Redis now
	bySlug.gives(r, "old", "v1")
	bySlug.gives(r, "other", "v1")
	mu.Lock()
	values["new"] = "v1"
	delete(values, "old")
	mu.Unlock()
	db.confirms(r, db.commit(feed.Change{Table: "product", Kind: feed.Updated, Old: row(1, "old"), New: row(1, "new"), Key: byID}))
	bySlug.gives(r, "new", "v1")
	bySlug.gives404(r, "old")
	bySlug.comesFrom(r, "other", cache.TierRedis)
}

// A row moves from one group to another, which ends the lists of both and no others. Defect: only the new row is looked at.
func TestARowThatMovesClearsTheTagsOfBothGroups(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db := newRows(r, 1, 2, 3), newLedger()
	src := source.source()
	src.Tags = func(list int64, _ string) []string { return []string{[]string{"", "old", "new", "other"}[list]} }
	c := open(r, src)
	follows(r, db, c, c.RouteTags("product", slugs))
	for list := range int64(3) {
		c.gives(r, list+1, "v1")
		source.put(list+1, "v2")
	}
	db.confirms(r, db.commit(feed.Change{Table: "product", Kind: feed.Updated, Old: row(7, "old"), New: row(7, "new"), Key: byID},
		feed.Change{Table: "category", Kind: feed.Updated, New: row(7, "other"), Key: byID}))
	c.gives(r, 1, "v2")
	c.gives(r, 2, "v2")
	c.gives(r, 3, "v1")
}

// A release that knows only a route to keys has followed the feed. Defect: a new route to tags of the same cache and table counts
// as covered by its position, and a list that has changed before stays.
func TestANewRouteToTagsClearsItsCache(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db := newRows(r, 1), newLedger()
	c := open(r, source.source())
	stop := follows(r, db, c)
	c.gives(r, 1, "v1")
	source.put(1, "v2")
	db.confirms(r, db.commit(updated(7)))
	c.gives(r, 1, "v1")
	stop()
	follows(r, db, c, c.Route("product", nil), c.RouteTags("product", slugs))
	c.gives(r, 1, "v2")
}

// A route ignores changes of other tables. A TRUNCATE of its own table clears its cache.
func TestTruncateClearsTheCachesOfItsTable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db := newRows(r, 1, 2), newLedger()
	c := open(r, source.source())
	other := open(r, source.source(), func(o *cache.Options) { o.Name = "other" })
	follows(r, db, c, c.Route("product", nil), other.Route("order", nil))
	c.gives(r, 1, "v1")
	other.gives(r, 1, "v1")
	source.put(1, "v2")
	db.confirms(r, db.commit(feed.Change{Table: "product", Kind: feed.Truncated}))
	c.gives(r, 1, "v2")
	other.gives(r, 1, "v1")
	db.confirms(r, db.commit(feed.Change{Table: "order", Kind: feed.Updated, New: row(1, ""), Key: byID}))
	other.gives(r, 1, "v2")
}
