package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
	"github.com/levee-go/levee/lock"
)

const (
	followLease  = 3 * time.Second       // how long a follower that died keeps other processes from following
	firstPause   = 50 * time.Millisecond // after a failure
	longestPause = 2 * time.Second       // after many failures
)

// A follower follows a feed for a process.
type follower struct {
	from    feed.Feed
	routes  []Route
	caches  []*Cache     // of the routes, each once
	locker  *lock.Locker // nil without Redis
	kept    *bookmarks
	log     *logonce.Log
	release func() // releases the name of the feed

	// State of the present lease; now is kept after it, for a Redis that comes back empty.
	now      bookmark
	progress bool // a bookmark was stored
	failing  bool // the last step has failed
	reading  *reading
	debts    *debts
	batch    int   // number of the last batch; 1: none has come
	pending  place // is stored next, when no filter is owed anything up to it; zero: none is
	newest   place // the last one that is applied and not stored; zero: none
}

// A place is the position of a batch.
type place struct {
	batch int
	at    feed.Position
}

// teller is implemented by a feed.Feed that knows the names of its tables.
type teller interface{ Tables() []string }

func newFollower(from feed.Feed, routes []Route) (*follower, error) {
	switch {
	case from == nil:
		return nil, errors.New("cache: Follow needs a feed")
	case len(routes) == 0:
		return nil, errors.New("cache: Follow needs a route")
	}
	f := &follower{from: from, routes: routes}
	known := map[*Cache]bool{}
	for _, r := range routes {
		if r.Cache == nil {
			return nil, errors.New("cache: Follow needs routes that Cache.Route or Cache.RouteTags has made")
		}
		if r.Err != nil {
			return nil, r.Err
		}
		if told, ok := from.(teller); ok && r.Table != "" && !slices.Contains(told.Tables(), r.Table) {
			return nil, fmt.Errorf("cache: no change would come by the route of table %q: the feed tells of %q", r.Table, told.Tables())
		}
		if !known[r.Cache] {
			known[r.Cache] = true
			f.caches = append(f.caches, r.Cache)
		}
	}
	name, first := from.Name(), f.caches[0]
	if err := keys.CheckName(name); err != nil {
		return nil, fmt.Errorf("cache: the feed's %w", err)
	}
	for _, c := range f.caches {
		if (c.Redis == nil) != (first.Redis == nil) {
			return nil, fmt.Errorf("cache: caches %q and %q cannot follow one feed: one has a Redis and one has none", first.Name, c.Name)
		}
	}
	var err error
	if f.release, err = claimFeed(first.Redis, keys.Under(first.Prefix, name)); err != nil {
		return nil, err
	}
	if first.Redis != nil {
		// The lock logs nothing: Follow logs what keeps a follower from its work.
		f.locker, err = lock.New(first.Redis, lock.Options{Lease: followLease, Prefix: keys.Under(first.Prefix, keys.FeedLocks), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			f.release()
			return nil, fmt.Errorf("cache: %w", err)
		}
	}
	f.kept = newBookmarks(first.Redis, first.Prefix, name)
	f.log = logonce.New(first.Logger.With("feed", name), "levee: ")
	return f, nil
}

func (f *follower) close() {
	if f.locker != nil {
		_ = f.locker.Close()
	}
	f.release()
}

// insist repeats do until it succeeds, ctx ends, or another follower has taken over.
func (f *follower) insist(ctx context.Context, do func() error) error {
	retries := wait.Backoff{First: firstPause, Max: longestPause}
	for {
		err := do()
		if err == nil || errors.Is(err, errOvertaken) {
			return err
		}
		if ctx.Err() != nil {
			return errors.Join(wait.Ended(ctx), err)
		}
		f.failed(err)
		retries.Sleep(ctx)
	}
}

func (f *follower) failed(err error) {
	f.failing = !errors.Is(err, errOvertaken)
	f.log.Warn("following a feed has failed and is tried again", "error", err)
	for _, c := range f.caches {
		c.failures.Add(1)
	}
}

// ofRedis is called with the error of a step that needs the Redis of the caches. It returns the error, and records for
// the caches that they are behind.
func (f *follower) ofRedis(err error) error {
	if err != nil && !errors.Is(err, errOvertaken) {
		until := time.Now().Add(catchUp)
		for _, c := range f.caches {
			c.behind.Store(&until)
		}
	}
	return err
}

// works records that the feed is read, or that a batch of it is applied.
func (f *follower) works() {
	if f.failing {
		f.failing = false
		f.log.Info("a feed is followed again")
	}
}

func covers(routes []Route) string {
	names := make([]string, len(routes))
	for i, r := range routes {
		names[i] = r.name()
	}
	return strings.Join(names, "\n")
}

// followedFeeds contains the feeds that this process follows, by the client of their caches.
var followedFeeds sync.Map

// claimFeed keeps a process from following a feed by two calls with different routes: one call
// would wait for the other's lock, and its caches would never be invalidated.
func claimFeed(rdb redis.UniversalClient, name string) (release func(), err error) {
	if rdb != nil && !reflect.ValueOf(rdb).Comparable() {
		return func() {}, nil
	}
	key := [2]any{rdb, name}
	if _, there := followedFeeds.LoadOrStore(key, true); there {
		return nil, fmt.Errorf("cache: feed %q is followed already in this process: give all routes to one Follow", name)
	}
	return func() { followedFeeds.Delete(key) }, nil
}
