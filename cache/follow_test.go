package cache_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

var feedCells = []cell{{redis: "real"}, {redis: "real", local: true}, {redis: "none", local: true}}

// Another program changes the rows and knows no cache. Follow drops the values of these rows,
// and leaves other values alone.
func TestFollowInvalidatesWhatOthersHaveWritten(t *testing.T) {
	inCells(t, feedCells, func(r *rig) {
		source, db := newRows(r, 1, 2, 3), newLedger()
		c := open(r, source.source())
		follows(r, db, c)
		for key := range int64(3) {
			c.gives(r, key+1, "v1")
		}
		source.put(1, "v2")
		source.put(2, "v2")
		db.confirms(r, db.commit(updated(1), deleted(2)))
		c.gives(r, 1, "v2")
		c.gives(r, 2, "v2")
		c.comesFrom(r, 3, r.near())
		if n := source.loads(3); n > 2 { // 2: a Clear at the beginning may overtake the load
			r.Errorf("a row that nobody has changed was loaded %d times", n)
		}
		if s := c.Stats().Follow; s.Changes != 2 || s.Batches != 1 || s.Failures != 0 || s.Lost != 0 || s.Behind != 0 {
			r.Errorf("got %+v", s)
		}
	})
}

// One of several processes reads the feed. When it stops, another one takes over by itself.
func TestOneProcessOfAFleetFollows(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db := newRows(r, 1), newLedger()
	stops, caches := map[*probe[int64, string]]func(){}, []*probe[int64, string]{}
	for range 3 {
		c := open(r, source.source())
		caches = append(caches, c)
		stops[c] = following(r, db, c.Route("product", nil))
	}
	leaders := func() (n int) {
		for _, c := range caches {
			if c.Stats().Follow.Following {
				n++
			}
		}
		return n
	}
	for n := range 3 {
		if n == 0 { // what commits later waits for the next follower
			r.eventually("one follows", func() bool { return leaders() == 1 })
		}
		db.confirms(r, db.commit(updated(1)))
		var leader *probe[int64, string]
		for _, c := range caches {
			if c.Stats().Follow.Following {
				if leader != nil {
					r.Fatal("two follow at a time")
				}
				leader = c
			}
		}
		if opens := db.opens(); opens != n+1 || leader == nil {
			r.Fatalf("%d streams for %d followers, leader %v", opens, n+1, leader)
		}
		stops[leader]()
	}
}

// Follow opens a feed again after each failure.
func TestFollowSurvivesItsFeed(t *testing.T) {
	inCells(t, []cell{{redis: "real"}, {redis: "none"}}, func(r *rig) {
		source, db := newRows(r, 1), newLedger()
		c := open(r, source.source())
		everyThird := func(what string) func() error {
			n := 0
			return func() error {
				if n++; n%3 == 1 {
					return errors.New(what)
				}
				return nil
			}
		}
		follows(r, db, c)
		db.confirms(r, db.commit(updated(1))) // from here on it is known where to go on
		open, confirm := everyThird("no connection"), everyThird("broken pipe")
		db.set(func() {
			db.onOpen = func(feed.Position) error { return open() }
			db.onNext = everyThird("connection reset")
			db.onConfirm = func(int) error { return confirm() }
		})
		for range 3 {
			db.confirms(r, db.commit(updated(1)))
		}
		if s := c.Stats().Follow; s.Failures == 0 {
			r.Errorf("got %+v", s)
		}
	})
}

func TestFollowRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db := newRows(r, 1), newLedger()
	c := open(r, source.source())
	alone := openOn(r, nil, source.source(), func(o *cache.Options) { o.Name = "alone" })
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	follows(r, db, c)
	for name, test := range map[string]struct {
		db     feed.Feed
		routes []cache.Route
		says   string
	}{
		"no feed":          {nil, []cache.Route{c.Route("", nil)}, "needs a feed"},
		"no routes":        {db, nil, "needs a route"},
		"an empty route":   {db, []cache.Route{{}}, "Cache.Route"},
		"no tags":          {db, []cache.Route{c.RouteTags("product", nil)}, `to tags of cache "test" needs a function`},
		"no name":          {&ledger{}, []cache.Route{c.Route("", nil)}, "Name must not be blank"},
		"a long name":      {&ledger{name: strings.Repeat("x", 2000)}, []cache.Route{c.Route("", nil)}, "1 to 1024 bytes"},
		"with and without": {db, []cache.Route{c.Route("", nil), alone.Route("", nil)}, "one has a Redis and one has none"},
		"another table":    {telling{db}, []cache.Route{c.Route("category", nil)}, `the route of table "category": the feed tells of ["product"]`},
		"a feed in use":    {db, []cache.Route{c.Route("", nil)}, "followed already"},
	} {
		if err := cache.Follow(ctx, test.db, test.routes...); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want %q", name, err, test.says)
		}
	}
}

// telling is a feed that knows its tables.
type telling struct{ feed.Feed }

func (telling) Tables() []string { return []string{"product"} }

func TestFollowEndsWithItsContextAndItsCaches(t *testing.T) {
	inCells(t, feedCells, func(r *rig) {
		c := open(r, newRows(r).source())
		for range 2 { // the second shows that the name of the feed was given back
			ctx, cancel := context.WithCancel(r.ctx)
			done := make(chan error, 1)
			go func() { done <- c.Follow(ctx, newLedger()) }()
			r.eventually("the feed is followed", func() bool { return c.Stats().Follow.Following })
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				r.Errorf("got %v, want %v", err, context.Canceled)
			}
		}
		done := make(chan error, 1)
		go func() { done <- c.Follow(r.ctx, newLedger()) }()
		r.eventually("the feed is followed", func() bool { return c.Stats().Follow.Following })
		_ = c.Close()
		if err := <-done; err != cache.ErrClosed {
			r.Errorf("got %v", err)
		}
		if err := c.Follow(r.ctx, newLedger()); err != cache.ErrClosed {
			r.Errorf("of a closed cache: %v", err)
		}
	})
}
