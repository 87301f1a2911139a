package cache_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// The database forgets a change as soon as the feed has confirmed it, so no reader may get the
// value from before the change after that. Defect: the position is confirmed, or stored, before
// the invalidation; or an invalidation counts that Redis has not confirmed.
func TestAChangeIsConfirmedAfterItsInvalidation(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
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

// The log of the database grows for as long as a change is not confirmed, so that may not take a
// replica of Redis.
func TestFollowDoesNotWaitForAReplica(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db := newRows(r, 1), newLedger()
	var log redistest.Log
	c := open(r, source.source(), logged(&log), func(o *cache.Options) { o.Rebuild.WaitReplicas = 1 })
	follows(r, db, c)
	for n := range 3 {
		r.eventually("the value is stored", func() bool {
			c.gives(r, 1, "v"+strconv.Itoa(n+1))
			return r.rdb.Exists(r.ctx, valueKey(1)).Val() == 1
		})
		source.put(1, "v"+strconv.Itoa(n+2))
		db.confirms(r, db.commit(updated(1)))
		c.gives(r, 1, "v"+strconv.Itoa(n+2))
	}
	db.confirms(r, db.commit(feed.Change{Kind: feed.Truncated, Table: "product"}))
	log.Await(t, "changes are confirmed to the feed that too few replicas of redis know of")
	if s := c.Stats(); s.Follow.Failures > 0 || s.Rebuild.Unconfirmed == 0 {
		r.Errorf("%+v, %d pending", s.Follow, s.Rebuild.Unconfirmed)
	}
}

// A transaction of any size comes in parts, which are confirmed together. Defect: a part is
// confirmed, and the follower dies before the rest.
func TestALargeTransactionIsConfirmedAsOne(t *testing.T) {
	t.Parallel()
	const size = 20_000
	server := redistest.Start(t)
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

// Changes wait in the database while nobody follows. The next follower, in any process, begins
// where the last one stopped, and clears nothing.
func TestANewFollowerGoesOnWhereTheLastOneStopped(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
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

// Defect: the cache is not cleared, or it is cleared before the stream is open. In the second case
// a value stays that was loaded in between and changed before the stream begins.
func TestALostPositionClearsTheCacheAfterTheStreamIsOpen(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"Open", "Next", "Next alone", "nothing in Redis"} {
		t.Run(how, func(t *testing.T) {
			server := redistest.Start(t)
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

// A follower finds the position lost, as at a replica that was promoted before it had all changes, and dies before it
// clears the caches. Another process has followed the feed up to a place that this database has.
//
// Defect: that process takes the position that was given up for one that Redis has lost, goes on from its own, and
// nobody clears the caches of the changes that are gone.
func TestAPositionThatWasGivenUpIsNotThatOfAnEarlierFollower(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, early, late := newRows(r, 1), newLedger(), newLedger()
	a, b := open(r, source.source()), openOn(r, redis.UniversalClient(server.Client(t)), source.source())
	gone := errors.New("the database is away")
	var away atomic.Bool
	early.onNext = func() error {
		if away.Load() {
			return gone
		}
		return nil
	}
	early.onOpen = func(feed.Position) error { return early.onNext() }
	lost := make(chan struct{})
	tell := sync.OnceFunc(func() { close(lost) })
	late.onOpen = func(from feed.Position) error {
		if from != (feed.Position{}) {
			return fmt.Errorf("the server does not have all: %w", feed.ErrPositionLost)
		}
		tell()
		return gone
	}
	follows(r, early, a)
	early.confirms(r, early.commit(updated(1)))
	a.gives(r, 1, "v1")
	source.put(1, "v2") // by a change that the promoted replica lacks
	away.Store(true)
	early.set(func() {})
	stop := following(r, late, b.Route("product", nil))
	<-lost
	stop()
	away.Store(false)
	r.eventually("the cache is cleared", func() bool { v, err := a.Get(r.ctx, 1); return err == nil && v == "v2" })
}

// A Redis that has lost all its data has lost the position too, so the cache is cleared.
func TestARedisThatHasForgottenThePositionClears(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
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

// A new release has one route more, and takes over the feed from a release without it. The values
// in the new route's cache may be older than the position, so this cache is cleared, and no other.
func TestACacheThatThePositionDoesNotCoverIsCleared(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
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
