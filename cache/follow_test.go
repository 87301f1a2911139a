package cache_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

var feedCells = []cell{{redis: "real"}, {redis: "real", local: true}, {redis: "none", local: true}}

// A writer changes the row alone, and knows no cache.
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

// Nobody may read what was there before a change that the feed has confirmed: the database
// forgets the change then. Defect: the position is confirmed, or kept, before the
// invalidation; or an invalidation that Redis has not confirmed counts.
func TestAChangeIsConfirmedAfterItsInvalidation(t *testing.T) {
	server := start(t)
	r := onServer(t, server, cell{redis: "real"})
	proxy := redistest.Proxy(t, server.Addr())
	source, db := newRows(r, 1), newLedger()
	reader := open(r, source.source())
	c := openOn(r, redis.UniversalClient(proxy.Client(t)), source.source())
	bookmark := func() string { return r.rdb.HGet(r.ctx, bookmarkKey(), "p").Val() }
	db.onConfirm = func(n int) error {
		reader.gives(r, 1, "v"+strconv.Itoa(n+1))
		if at := bookmark(); at != strconv.Itoa(n) {
			r.Errorf("the feed confirms %d, and Redis has %q", n, at)
		}
		return nil
	}
	follows(r, db, c)
	for n := range 3 {
		reader.gives(r, 1, "v"+strconv.Itoa(n+1))
		source.put(1, "v"+strconv.Itoa(n+2))
		db.confirms(r, db.commit(updated(1)))
	}

	proxy.Refuse(true)
	proxy.Cut()
	reader.gives(r, 1, "v4")
	source.put(1, "v5")
	db.commit(updated(1))
	r.eventually("the follower notices that Redis is away", func() bool { return c.Stats().Follow.Failures > 0 })
	if n, at := db.done(), bookmark(); n != 3 || at != "3" {
		r.Errorf("confirmed up to %d, kept at %q, while Redis confirms nothing", n, at)
	}
	proxy.Heal()
	db.confirms(r, 4)
}

// Changes that come while nobody follows wait in the database, and the next follower, in
// whatever process, begins where the last one has stopped: it clears nothing.
func TestANewFollowerGoesOnWhereTheLastOneStopped(t *testing.T) {
	server := start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db := newRows(r, 1, 2), newLedger()
	a, b := open(r, source.source()), open(r, source.source())
	stop := follows(r, db, a)
	db.confirms(r, db.commit(updated(1)))
	stop()
	a.gives(r, 1, "v1")
	a.gives(r, 2, "v1")
	source.put(1, "v2")
	db.commit(updated(1))
	source.forget()
	follows(r, db, b)
	db.confirms(r, 2)
	a.gives(r, 1, "v2")
	a.gives(r, 2, "v1")
	if n := source.loads(2); n != 0 {
		r.Errorf("%d loads of a key that nobody has changed: the cache was cleared", n)
	}
}

// Of several processes one reads. When it stops, another takes over by itself.
func TestOneProcessOfAFleetFollows(t *testing.T) {
	server := start(t)
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

// Defect: the cache is not cleared, or it is cleared before the stream is open: a value
// that is loaded in between, and changed before the stream begins, stays.
func TestALostPositionClearsTheCacheAfterTheStreamIsOpen(t *testing.T) {
	for _, how := range []string{"Open", "Next", "Next alone", "nothing in Redis"} {
		t.Run(how, func(t *testing.T) {
			server := start(t)
			r := onServer(t, server, cell{redis: "real"})
			source, db := newRows(r, 1), newLedger()
			var log redistest.Log
			c := open(r, source.source(), logged(&log))
			reader := open(r, source.source())
			db.commit() // the stream begins somewhere
			openNow := func(from feed.Position) error {
				if from == (feed.Position{}) {
					reader.gives(r, 1, "v1")
					source.put(1, "v2") // and nobody is told
				}
				return nil
			}
			if how == "nothing in Redis" {
				db.set(func() { db.onOpen = openNow })
				following(r, db, c.Route("product", nil))
			} else {
				stop := follows(r, db, c)
				db.confirms(r, db.commit(updated(1)))
				lose := func() {
					db.onOpen = openNow
					db.written, db.at = append(db.written, nil, nil), append(db.at, time.Now(), time.Now())
					db.purged, db.blind = len(db.written), how == "Next alone"
				}
				if how == "Open" {
					stop()
					db.set(lose)
					following(r, db, c.Route("product", nil))
				} else {
					db.set(lose)
				}
				log.Await(t, "changes are lost to the feed")
			}
			r.eventually("the cache is cleared", func() bool { v, err := reader.Get(r.ctx, 1); return err == nil && v == "v2" })
			log.Await(t, "a cache was cleared")
			if n := c.Stats().Follow.Lost; (n == 1) == (how == "nothing in Redis") {
				r.Errorf("%d positions are lost", n)
			}
			source.put(1, "v3")
			db.confirms(r, db.commit(updated(1)))
			reader.gives(r, 1, "v3")
		})
	}
}

// Bad routes: the error names table and cause, the position stays, and once the route
// works the change is dealt with.
func TestARouteThatFailsKeepsThePosition(t *testing.T) {
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
			server := start(t)
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

// A row that moves from one key to another changes what both have. Defect: only the new
// row is looked at.
func TestARowThatMovesDropsBothKeys(t *testing.T) {
	server := start(t)
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

// Changes of other tables are none of a route's business; TRUNCATE is that of all keys.
func TestTruncateClearsTheCachesOfItsTable(t *testing.T) {
	server := start(t)
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

// A transaction of any size comes in parts that are confirmed together. Defect: a part is
// confirmed, and the follower dies before the rest.
func TestALargeTransactionIsConfirmedAsOne(t *testing.T) {
	const size = 20_000
	server := start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db := newRows(r), newLedger()
	c := open(r, source.source())
	db.part = 1000
	follows(r, db, c)
	changes := make([]feed.Change, size)
	for i := range changes {
		changes[i] = updated(int64(i % (size / 2))) // each twice, far apart
	}
	db.confirms(r, db.commit(updated(1)))
	before, parts := server.Calls("publish"), 0
	db.set(func() {
		db.onNext = func() error {
			if parts++; parts == 12 { // the database goes away in the middle
				return errors.New("connection reset")
			}
			if n := db.done(); n != 1 && parts < 12+size/db.part {
				r.Errorf("%d transactions are confirmed, of one that goes on", n)
			}
			return nil
		}
	})
	db.confirms(r, db.commit(changes...))
	if n := server.Calls("publish") - before; n < size/2 {
		r.Errorf("%d of %d keys were invalidated", n, size/2)
	}
	if s := c.Stats().Follow; s.Changes < size || s.Batches < size/1000 {
		r.Errorf("got %+v", s)
	}
}

// A release with a route more takes a feed over from one without it. What the new route's
// cache holds may be older than the position.
func TestACacheThatThePositionDoesNotCoverIsCleared(t *testing.T) {
	server := start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db := newRows(r, 1), newLedger()
	c := open(r, source.source())
	other := open(r, source.source(), func(o *cache.Options) { o.Name = "other" })
	stop := follows(r, db, c)
	c.gives(r, 1, "v1")
	other.gives(r, 1, "v1")
	db.confirms(r, db.commit(updated(7)))
	source.put(1, "v2")
	db.confirms(r, db.commit(updated(1)))
	other.gives(r, 1, "v1") // nobody has told it
	c.gives(r, 1, "v2")
	stop()
	source.forget()
	follows(r, db, c, c.Route("product", nil), other.Route("product", nil))
	other.gives(r, 1, "v2")
	c.gives(r, 1, "v2")
	if n := source.loads(1); n != 1 {
		r.Errorf("%d loads: the cache that was covered is cleared too", n)
	}
}

// A Redis that has lost everything has lost the position too.
func TestARedisThatHasForgottenThePositionClears(t *testing.T) {
	server := start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	source, db := newRows(r, 1), newLedger()
	c := open(r, source.source(), func(o *cache.Options) { o.StaleIfError, o.StaleWhileRevalidate = -1, -1 })
	follows(r, db, c)
	db.confirms(r, db.commit(updated(1)))
	c.gives(r, 1, "v1")
	server.Restart()
	source.put(1, "v2")
	db.commit(updated(1)) // which the stream may begin before, or after
	r.eventually("the new value", func() bool { v, err := c.Get(r.ctx, 1); return err == nil && v == "v2" })
}

// A feed that fails is opened anew.
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
	server := start(t)
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
		for _, ended := range []bool{false, true} {
			ctx, cancel := context.WithCancel(r.ctx)
			done := make(chan error, 1)
			go func() { done <- c.Follow(ctx, newLedger()) }()
			r.eventually("the feed is followed", func() bool { return c.Stats().Follow.Following })
			want := context.Canceled
			if cancel(); ended {
				want = cache.ErrClosed
			}
			if !ended {
				if err := <-done; !errors.Is(err, want) {
					r.Errorf("got %v, want %v", err, want)
				}
			} else {
				<-done
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

// Lag grows while changes are not dealt with, and ends with them.
func TestTheLagOfAFeedIsCounted(t *testing.T) {
	server := start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db := newRows(r, 1), newLedger()
	c := open(r, source.source())
	var stuck atomic.Bool
	stuck.Store(true)
	follows(r, db, c, c.Route("product", func(row feed.Row) ([]int64, error) {
		if stuck.Load() {
			return nil, errors.New("not yet")
		}
		return nil, nil
	}))
	db.commit(updated(1))
	db.commit(updated(1))
	db.commit(updated(1))
	r.eventually("the lag grows", func() bool { return c.Stats().Follow.Lag > 200*time.Millisecond })
	if n := c.Stats().Follow.Behind; n > 2 {
		r.Errorf("%d transactions are behind the first", n)
	}
	stuck.Store(false)
	db.confirms(r, 3)
	r.eventually("the lag ends", func() bool { s := c.Stats().Follow; return s.Lag == 0 && s.Behind == 0 })
}

// A feed that has never worked, and one whose Follow has given up with an error that nobody has
// read, is one that somebody counts on. Defect: an alert asks for feeds that have worked
// before in this process, and is silent after a restart.
func TestAFeedThatDoesNotWorkIsWanted(t *testing.T) {
	server := start(t)
	r := onServer(t, server, cell{redis: "real"})
	c := open(r, newRows(r, 1).source())
	if c.Stats().Follow.Wanted {
		t.Error("nobody has called Follow, and a feed is wanted")
	}
	broken := newLedger()
	broken.onOpen = func(feed.Position) error { return errors.New("no rights") }
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan error)
	go func() { ended <- c.Follow(ctx, broken) }()
	r.eventually("the feed fails", func() bool { return c.Stats().Follow.Failures > 0 })
	if s := c.Stats().Follow; !s.Wanted || s.Following {
		t.Errorf("of a feed that fails: %+v", s)
	}
	cancel()
	<-ended
	if s := c.Stats().Follow; s.Wanted {
		t.Errorf("after the end of its context: %+v", s)
	}

	ctx, cancel = context.WithCancel(r.ctx)
	if err := c.Follow(ctx, &ledger{}); err == nil {
		t.Error("a feed without a name is followed")
	}
	if s := c.Stats().Follow; !s.Wanted || s.Following {
		t.Errorf("after Follow has given up: %+v", s)
	}
	cancel()
	if s := c.Stats().Follow; s.Wanted {
		t.Errorf("after the end of the context of a Follow that had given up: %+v", s)
	}
	_ = c.Follow(r.ctx, &ledger{})
	if _ = c.Close(); c.Stats().Follow.Wanted {
		t.Error("a feed is wanted for a closed cache")
	}
}
