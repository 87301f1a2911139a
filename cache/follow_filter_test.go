package cache_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
)

// A census is a counting filter that notes what it is told.
type census struct {
	mu                      sync.Mutex
	added, ensured, removed map[string]int
	onRemove                func()
}

func newCensus() *census {
	return &census{added: map[string]int{}, ensured: map[string]int{}, removed: map[string]int{}}
}

func (f *census) note(what map[string]int, ids []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		what[id]++
	}
	return nil
}

func (f *census) MayContain(context.Context, string) bool       { return true }
func (f *census) Add(_ context.Context, ids ...string) error    { return f.note(f.added, ids) }
func (f *census) Ensure(_ context.Context, ids ...string) error { return f.note(f.ensured, ids) }
func (f *census) Remove(_ context.Context, ids ...string) error {
	if len(ids) > 0 && f.onRemove != nil {
		f.onRemove()
	}
	return f.note(f.removed, ids)
}

func (f *census) counts(what map[string]int, id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return what[id]
}

// A second Remove of an id takes other ids out of a counting filter, which are denied then
// although they exist. Defects: a change that comes again is removed again; the Remove
// comes before the position is kept, and again after a crash in between.
func TestAKeyIsRemovedFromTheFilterOnce(t *testing.T) {
	server := start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db, filter := newRows(r), newLedger(), newCensus()
	c := open(r, source.source(), func(o *cache.Options) { o.Filter = filter })
	filter.onRemove = func() {
		if at := r.rdb.HGet(r.ctx, bookmarkKey(), "p").Val(); at != strconv.Itoa(db.done()+1) {
			r.Errorf("removed before the position is kept: %q, confirmed %d", at, db.done())
		}
	}
	// Without a position nothing is known of what was removed before, until the stream has
	// caught up.
	follows(r, db, c)
	db.set(func() { // the first is read while there is another one to come
		db.written = append(db.written, []feed.Change{deleted(1)}, []feed.Change{deleted(7)})
		db.at = append(db.at, time.Now(), time.Now())
	})
	db.confirms(r, 2)
	db.confirms(r, db.commit(inserted(2), inserted(3), updated(4)))

	db.set(func() { db.repeat = 2 })
	failures := 0
	db.set(func() {
		db.onConfirm = func(n int) error { // so the stream is opened anew, a little before
			if failures++; failures <= 3 {
				return errors.New("connection reset")
			}
			return nil
		}
	})
	db.commit(deleted(2), deleted(2), feed.Change{Table: "product", Kind: feed.Updated, Old: row(5, ""), New: row(6, ""), Key: byID})
	db.confirms(r, 4)
	db.confirms(r, db.commit(deleted(3)))
	for id, want := range map[string]int{"1": 0, "7": 0, "2": 2, "3": 1, "4": 0, "5": 1, "6": 0} {
		if n := filter.counts(filter.removed, id); n != want {
			r.Errorf("%s was removed %d times, want %d", id, n, want)
		}
	}
	for _, id := range []string{"2", "3", "6"} {
		if filter.counts(filter.added, id) == 0 {
			r.Errorf("%s was not added", id)
		}
	}
	if filter.counts(filter.ensured, "4") == 0 || filter.counts(filter.added, "4") != 0 {
		r.Error("a row that was there counts once more")
	}
}

// What only looks like a deleted key stays in the filter: rows that share a key, rows of
// tables that nobody has named, and deletions that a Rebuild may have seen.
func TestWhatMayStillExistIsNotRemovedFromTheFilter(t *testing.T) {
	server := start(t)
	r := onServer(t, server, cell{redis: "real"})
	for name, route := range map[string]func(c *probe[int64, string]) cache.Route{
		"a func": func(c *probe[int64, string]) cache.Route {
			return c.Route("product", func(feed.Row) ([]int64, error) { return []int64{7}, nil })
		},
		"no table": func(c *probe[int64, string]) cache.Route { return c.Route("", nil) },
		"long ago": func(c *probe[int64, string]) cache.Route { return c.Route("product", nil) },
	} {
		r.Run(name, func(t *testing.T) {
			db, filter := newLedger(), newCensus()
			db.name = name
			c := open(r, newRows(r).source(), func(o *cache.Options) { o.Name, o.Filter = name, filter })
			stop := follows(r, db, c, route(c))
			defer stop()
			db.confirms(r, db.commit(updated(1)))
			db.set(func() {
				db.written, db.at = append(db.written, []feed.Change{deleted(7)}), append(db.at, time.Now())
				if name == "long ago" {
					db.at[1] = time.Now().Add(-time.Minute)
				}
			})
			db.confirms(r, 2)
			if n := filter.counts(filter.removed, "7"); n != 0 {
				t.Errorf("removed %d times", n)
			}
		})
	}
}

// The filters that levee ships learn and forget by a feed.
func TestFiltersLearnAndForgetByTheFeed(t *testing.T) {
	for _, counting := range []bool{false, true} {
		t.Run("counting "+strconv.FormatBool(counting), func(t *testing.T) {
			server := start(t)
			r := onServer(t, server, cell{redis: "real"})
			filter := must(bloom.Open(r.ctx, server.Client(t), bloom.Options{
				Name: "product", Capacity: 1000, FalsePositiveRate: 1e-6, Complete: true, Counting: counting, MaxTransaction: -1,
			}))
			t.Cleanup(func() { _ = filter.Close() })
			r.eventually("the filter answers", func() bool { return !filter.MayContain(r.ctx, "1") })
			source, db := newRows(r), newLedger()
			c := open(r, source.source(), func(o *cache.Options) { o.Filter = filter })
			follows(r, db, c)
			c.gives404(r, 1)
			source.put(1, "v1")
			db.confirms(r, db.commit(inserted(1)))
			c.gives(r, 1, "v1")
			db.confirms(r, db.commit(deleted(1)))
			r.eventually("a counting filter forgets it, another does not", func() bool { return filter.MayContain(r.ctx, "1") != counting })
		})
	}
}
