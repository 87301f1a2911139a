package cacheprom_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/cache/cacheprom"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/lock"
	"github.com/levee-go/levee/mutexrebuild"
)

// A shop is a process with a cache for each fault, each with a Redis or a source that is broken
// in one way, and a Prometheus that scrapes it.
type shop struct {
	*testing.T
	registry *prometheus.Registry
	server   *redistest.Server // that is well
	prom     *prom
	calls    sync.WaitGroup
	keys     atomic.Int64
	ctx      context.Context
}

var quiet = slog.New(slog.DiscardHandler)

// TestEachAlertFires brings about the fault of each alert, before a real Prometheus, with the rules as
// they are but 30 times as fast, and none that waits for more than five minutes. Defects that it has caught: the default breaker in no
// metric, a source that hangs and whose breaker is seen half open in every other scrape, an
// event before the first scrape that increase does not see, a feed that never worked, one
// page more for a Redis outage, and stale-while-revalidate taken for old answers.
func TestEachAlertFires(t *testing.T) {
	s := &shop{T: t, registry: prometheus.NewRegistry(), server: redistest.Start(t)}
	endpoint := httptest.NewServer(promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{DisableCompression: true}))
	t.Cleanup(endpoint.Close)
	ctx, cancel := context.WithCancel(t.Context())
	s.ctx = ctx
	t.Cleanup(func() { cancel(); s.calls.Wait() })

	s.well() // before the first scrape: until it is rebuilt its filter abstains
	s.prom = startPrometheus(t, endpoint.URL)
	broken := s.feedNeverWorked()
	for _, fault := range []func(){
		s.sourceDown, s.sourceHangs, s.sourceFlaky, s.loaderIgnoresContext, s.redisAway, s.mayNotSubscribe, s.replicaMissing,
		s.foreignKey, s.twoTypes, s.filterWithoutRows, s.filters, s.feedLost, s.feedBehind, s.forgetfulWriter, s.olderValues,
		s.foreignBytes, s.locks, s.staleInPlaceOfErrors, s.staleWhileRefreshed,
	} {
		fault()
	}

	missing := map[string]bool{}
	for _, want := range expected {
		missing[want] = true
	}
	seen := map[string]bool{}
	for deadline := time.Now().Add(10 * time.Minute); len(missing) > 0 && time.Now().Before(deadline) && !t.Failed(); time.Sleep(200 * time.Millisecond) {
		for alert := range s.prom.firing() {
			if !seen[alert] {
				t.Log(alert)
			}
			seen[alert] = true
			delete(missing, alert)
		}
	}
	// A deployment does not end the alert of a feed that does not work.
	cacheprom.Unregister(s.registry, broken)
	_ = broken.Close()
	s.feedNeverWorked()
	time.Sleep(2 * time.Second) // some scrapes
	redistest.Eventually(t, 2*time.Minute, "LeveeFeedSilent fires after a restart", func() bool { return s.prom.firing()["LeveeFeedSilent/feed-broken"] })

	for alert := range missing {
		t.Errorf("%s did not fire", alert)
	}
	for alert := range seen {
		if name, of, _ := strings.Cut(alert, "/"); slices.Contains(unexpected, alert) || of == "well" {
			t.Errorf("%s fired for %s", name, of)
		}
	}
	for _, rule := range rules(t) {
		if !slices.ContainsFunc(expected, func(alert string) bool { return strings.HasPrefix(alert, rule.Alert+"/") }) {
			t.Errorf("nobody brings about the fault of %s", rule.Alert)
		}
	}
	t.Log(slices.Sorted(maps.Keys(seen)))
}

// expected are the alerts that have to fire, each with the cache or name of its fault.
var expected = []string{
	"LeveeGetsFail/source-down", "LeveeBreakerOpen/source-down", "LeveeBreakerOpen/source-hangs", "LeveeLoadsFail/source-flaky",
	"LeveeLoadsStuck/stuck", "LeveeRedisOutage/redis-away", "LeveeInvalidationsPending/redis-away", "LeveeInvalidationsDropped/ended",
	"LeveeMessagesSilent/no-messages", "LeveeWritesNotConfirmed/no-replica", "LeveeForeignKeys/foreign", "LeveeOtherType/two-types",
	"LeveeFilterWrong/filter-wrong", "LeveeFilterAbstains/never-built", "LeveeFilterFull/full",
	"LeveeFeedLost/feed-lost", "LeveeFeedBehind/feed-behind", "LeveeFeedSilent/feed-broken", "LeveeNobodyInvalidated/forgotten", "LeveeOldAfterChange/older",
	"LeveeUnfitValues/unfit", "LeveeLockLost/lost", "LeveeRenewalsFail/renewals", "LeveeStaleAnswers/fallbacks",
}

// unexpected are those that must not: another alert's fault, or none.
var unexpected = []string{
	"LeveeFeedSilent/redis-away", "LeveeMessagesSilent/redis-away", "LeveeStaleAnswers/refreshed", "LeveeWritesNotConfirmed/redis-away",
}

// open makes a cache and has it scraped.
func (s *shop) open(rdb redis.UniversalClient, name string, load cache.Loader[string, string], change func(*cache.Options)) *cache.Cache[string, string] {
	s.Helper()
	c := s.make(rdb, name, load, change)
	check(s, cacheprom.Register(s.registry, c))
	return c
}

// patient is how long caches wait for a Redis that has no fault: a busy machine is none either.
const patient = 5 * time.Second

// nervous is for caches whose Redis has one.
func nervous(o *cache.Options) { o.RedisTimeout = 0 }

func (s *shop) make(rdb redis.UniversalClient, name string, load cache.Loader[string, string], change func(*cache.Options)) *cache.Cache[string, string] {
	s.Helper()
	o := cache.Options{Name: name, Logger: quiet, RedisTimeout: patient}
	if change != nil {
		change(&o)
	}
	c := redistest.Must(cache.New(rdb, load, o))
	s.Cleanup(func() { _ = c.Close() })
	return c
}

// keeps calls a function again and again, until the test ends.
func (s *shop) keeps(every time.Duration, call func(n int)) {
	s.calls.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for n := 0; ; n++ {
			call(n)
			select {
			case <-tick.C:
			case <-s.ctx.Done():
				return
			}
		}
	})
}

// reads keeps reading keys that nobody has read.
func (s *shop) reads(c *cache.Cache[string, string], every time.Duration) {
	s.keeps(every, func(int) { _, _ = c.Get(s.ctx, fmt.Sprint("new ", s.keys.Add(1))) })
}

func lamp(context.Context, string) (string, error) { return "lamp", nil }

var errDown = errors.New("no route to host")

// well is a cache that uses everything, and has no fault.
func (s *shop) well() {
	exists := redistest.Must(bloom.New(bloom.Options{Name: "well", Capacity: 1000}))
	c := s.open(s.server.Client(s), "well", lamp, func(o *cache.Options) { o.Filter = exists })
	rebuild := func() {
		check(s, c.RebuildFilter(s.ctx, func(yield func(string, error) bool) {
			for n := range 100 {
				if !yield(fmt.Sprint("key ", n), nil) {
					return
				}
			}
		}))
	}
	rebuild()
	// A busy machine may have the follower lose its lease: without a position it would begin anew, and the filter abstain.
	s.follow(c, &aFeed{name: "well", open: func(from feed.Position) (feed.Stream, error) {
		return &stream{batch: feed.Batch{Position: feed.Position{Text: "somewhere", Order: from.Order + 1}}}, nil
	}})
	redistest.Eventually(s, time.Minute, "the feed is followed, and the filter needs a rebuild", func() bool { return c.Stats().Follow.Batches > 0 && exists.Stats().NeedsRebuild })
	rebuild()
	s.Cleanup(redistest.Must(audit.NewLedger(c, lamp, audit.LedgerOptions[string, string]{Share: 1})).Close)
	s.keeps(50*time.Millisecond, func(n int) {
		_, _ = c.Get(s.ctx, fmt.Sprint("key ", n%100))
		if n%10 == 0 {
			_ = c.Invalidate(s.ctx, fmt.Sprint("key ", n%100))
		}
	})
	locker := redistest.Must(lock.New(s.server.Client(s), lock.Options{Logger: quiet, Lease: time.Minute}))
	s.Cleanup(func() { _ = locker.Close() })
	check(s, cacheprom.RegisterLocker(s.registry, "well", locker))
	_ = redistest.Must(locker.Lock(s.ctx, "well"))
}

// sourceDown is what the service of docs/getting-started.md meets when its database is away: it
// has made no breaker by hand.
func (s *shop) sourceDown() {
	c := s.open(nil, "source-down", func(context.Context, string) (string, error) { return "", errDown }, nil)
	s.reads(c, 20*time.Millisecond)
}

// sourceHangs has a breaker that is half open for as long as it is open.
func (s *shop) sourceHangs() {
	b := redistest.Must(breaker.New(breaker.Options{Name: "source-hangs", Timeout: 150 * time.Millisecond, Cooldown: 150 * time.Millisecond, Window: 2 * time.Second}))
	c := s.open(nil, "source-hangs", func(ctx context.Context, _ string) (string, error) { <-ctx.Done(); return "", ctx.Err() },
		func(o *cache.Options) { o.Breaker = b })
	for range 8 {
		s.reads(c, 30*time.Millisecond)
	}
}

func (s *shop) sourceFlaky() {
	var n atomic.Int64
	c := s.open(nil, "source-flaky", func(context.Context, string) (string, error) {
		if n.Add(1)%4 == 0 {
			return "", errDown
		}
		return "lamp", nil
	}, nil)
	s.reads(c, 20*time.Millisecond)
}

func (s *shop) loaderIgnoresContext() {
	ended := make(chan struct{})
	s.Cleanup(func() { close(ended) })
	c := s.open(nil, "stuck", func(context.Context, string) (string, error) { <-ended; return "", errDown },
		func(o *cache.Options) {
			o.Breaker = redistest.Must(breaker.New(breaker.Options{Name: "stuck", Timeout: 100 * time.Millisecond}))
		})
	for n := range 12 {
		s.calls.Go(func() { _, _ = c.Get(s.ctx, fmt.Sprint(n)) })
	}
}

// redisAway is an outage, with a feed, and with more invalidations than wait.
func (s *shop) redisAway() {
	server := redistest.Start(s)
	c := s.open(server.Client(s), "redis-away", lamp, nervous)
	s.follow(c, &aFeed{name: "shop", open: func(feed.Position) (feed.Stream, error) { return &stream{}, nil }})
	redistest.Eventually(s, 20*time.Second, "the feed is followed", func() bool { return c.Stats().Follow.Following && c.Stats().Live })
	server.Kill()
	s.reads(c, 20*time.Millisecond)
	redistest.Eventually(s, 20*time.Second, "the outage is noticed", func() bool { return c.Stats().Rebuild.Outage })
	s.calls.Go(func() {
		for n := range 11 {
			ids := make([]string, 1000)
			for i := range ids {
				ids[i] = fmt.Sprint(n, "/", i)
			}
			_ = c.Invalidate(s.ctx, ids...)
		}
	})
	ended := s.open(server.Client(s), "ended", lamp, nervous)
	s.calls.Go(func() {
		_ = ended.Invalidate(s.ctx, "a")
		_ = ended.Close()
	})
}

func (s *shop) mayNotSubscribe() {
	server := redistest.Start(s)
	admin := server.Client(s)
	check(s, admin.Do(s.ctx, "ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all", "-subscribe", "-ssubscribe", "-psubscribe").Err())
	rdb := server.Client(s, func(o *redis.Options) { o.Username, o.Password = "shop", "secret" })
	s.reads(s.open(rdb, "no-messages", lamp, nil), 20*time.Millisecond)
}

// replicaMissing is a Redis without the replica that each invalidation is to be known to.
func (s *shop) replicaMissing() {
	c := s.open(s.server.Client(s), "no-replica", lamp, func(o *cache.Options) {
		nervous(o)
		o.Rebuild = mutexrebuild.Options{WaitReplicas: 1}
	})
	s.keeps(300*time.Millisecond, func(n int) { _ = c.Invalidate(s.ctx, fmt.Sprint(n)) })
}

// foreignKey is met once, before the first scrape.
func (s *shop) foreignKey() {
	rdb := s.server.Client(s)
	check(s, rdb.LPush(s.ctx, keys.OfCache("foreign").Value(0, "a"), "x").Err())
	c := s.make(rdb, "foreign", lamp, nil)
	_, _ = c.Get(s.ctx, "a")
	check(s, cacheprom.Register(s.registry, c))
}

func (s *shop) twoTypes() {
	type row struct{ Name string }
	old := redistest.Must(cache.New(s.server.Client(s), func(context.Context, string) (row, error) { return row{"lamp"}, nil },
		cache.Options{Name: "two-types", Logger: quiet, RedisTimeout: patient}))
	s.Cleanup(func() { _ = old.Close() })
	c := s.make(s.server.Client(s), "two-types", lamp, nil)
	check(s, old.Set(s.ctx, "a", row{"lamp"}))
	_, _ = c.Get(s.ctx, "a")
	check(s, cacheprom.Register(s.registry, c))
}

// filterWithoutRows says of itself that it is complete, and knows nothing.
func (s *shop) filterWithoutRows() {
	exists := redistest.Must(bloom.New(bloom.Options{Capacity: 100, Complete: true}))
	c := s.open(nil, "filter-wrong", lamp, func(o *cache.Options) { o.Filter = deaf{exists} })
	check(s, c.Set(s.ctx, "a", "lamp"))
}

// deaf is a filter that learns of no key.
type deaf struct{ *bloom.Filter }

func (deaf) Add(context.Context, ...string) error    { return nil }
func (deaf) Ensure(context.Context, ...string) error { return nil }

func (s *shop) filters() {
	unbuilt := redistest.Must(bloom.Open(s.ctx, s.server.Client(s), bloom.Options{Name: "never-built", Capacity: 100, Logger: quiet}))
	s.Cleanup(func() { _ = unbuilt.Close() })
	check(s, cacheprom.RegisterFilter(s.registry, unbuilt))
	full := redistest.Must(bloom.New(bloom.Options{Name: "full", Capacity: 100, Complete: true}))
	for n := range 300 {
		check(s, full.Add(s.ctx, fmt.Sprint(n)))
	}
	check(s, cacheprom.RegisterFilter(s.registry, full))
}

// follow follows a feed for a cache until the test ends.
func (s *shop) follow(c *cache.Cache[string, string], f feed.Feed) {
	s.calls.Go(func() { _ = c.Follow(s.ctx, f) })
}

// aFeed is a feed.Feed in memory.
type aFeed struct {
	name string
	open func(from feed.Position) (feed.Stream, error)
}

func (f *aFeed) Name() string { return f.name }

func (f *aFeed) Open(_ context.Context, from feed.Position) (feed.Stream, error) {
	return f.open(from)
}

// A stream gives one batch, and then nothing.
type stream struct {
	batch feed.Batch
	given bool
}

func (st *stream) Next(ctx context.Context) (feed.Batch, error) {
	if !st.given && st.batch.Position.Text != "" {
		st.given = true
		return st.batch, nil
	}
	<-ctx.Done()
	return feed.Batch{}, ctx.Err()
}

func (st *stream) Confirm(context.Context, feed.Position) error { return nil }
func (st *stream) Close() error                                 { return nil }

// change is a batch of one change, committed long ago.
func change() feed.Batch {
	return feed.Batch{
		Changes:  []feed.Change{{Table: "product", Kind: feed.Updated, New: feed.Row{"id": "a"}, Key: []string{"id"}}},
		Position: feed.Position{Text: "1", Order: 1}, Committed: time.Now().Add(-time.Hour),
	}
}

// feedLost is what a process that starts finds: what it has not read is gone. It is
// counted before the first scrape, and never again.
func (s *shop) feedLost() {
	c := s.make(s.server.Client(s), "feed-lost", lamp, nil)
	lost := &aFeed{name: "feed-lost", open: func(from feed.Position) (feed.Stream, error) {
		if from != (feed.Position{}) {
			return nil, feed.ErrPositionLost
		}
		return &stream{batch: change()}, nil
	}}
	first, cancel := context.WithCancel(s.ctx)
	var ended sync.WaitGroup
	ended.Go(func() { _ = c.Follow(first, lost) })
	redistest.Eventually(s, 20*time.Second, "a position is kept", func() bool { return c.Stats().Follow.Batches > 0 })
	time.Sleep(100 * time.Millisecond)
	cancel()
	ended.Wait()
	s.follow(c, lost)
	redistest.Eventually(s, 20*time.Second, "the position is lost", func() bool { return c.Stats().Follow.Lost > 0 })
	check(s, cacheprom.Register(s.registry, c))
}

// feedBehind has a change that cannot be dealt with.
func (s *shop) feedBehind() {
	c := s.open(s.server.Client(s), "feed-behind", lamp, nil)
	route := c.Route("product", func(feed.Row) ([]string, error) { return nil, errDown })
	s.calls.Go(func() {
		_ = cache.Follow(s.ctx, &aFeed{name: "feed-behind", open: func(feed.Position) (feed.Stream, error) { return &stream{batch: change()}, nil }}, route)
	})
}

// feedNeverWorked is a feed with a wrong password.
func (s *shop) feedNeverWorked() *cache.Cache[string, string] {
	c := s.open(s.server.Client(s), "feed-broken", lamp, nil)
	s.follow(c, &aFeed{name: "feed-broken", open: func(feed.Position) (feed.Stream, error) { return nil, errDown }})
	return c
}

func (s *shop) forgetfulWriter() {
	var price atomic.Int64
	c := s.make(s.server.Client(s), "forgotten", func(context.Context, string) (string, error) { return fmt.Sprint(price.Load()), nil },
		func(o *cache.Options) { o.Local = localcache.Options{HotKeys: 100} })
	_, _ = c.Get(s.ctx, "a")
	price.Store(2) // and tells nobody
	s.calls.Go(func() {
		_ = audit.Run(s.ctx, c, audit.Options[string, string]{Rate: 1000, Settle: 100 * time.Millisecond})
	})
	s.keeps(5*time.Millisecond, func(int) { _, _ = c.Get(s.ctx, "a") })
	check(s, cacheprom.Register(s.registry, c))
}

// olderValues has a writer that Sets what it has read before, and a Ledger.
func (s *shop) olderValues() {
	load := func(context.Context, string) (string, error) { return "new", nil }
	c := s.open(s.server.Client(s), "older", load, nil)
	s.Cleanup(redistest.Must(audit.NewLedger(c, load, audit.LedgerOptions[string, string]{Share: 1, Old: func(audit.StaleValue[string, string]) {}})).Close)
	s.keeps(200*time.Millisecond, func(n int) { _ = c.Set(s.ctx, fmt.Sprint(n), "old") })
}

func (s *shop) foreignBytes() {
	rdb := s.server.Client(s)
	c, names := s.open(rdb, "unfit", lamp, nil), keys.OfCache("unfit")
	s.keeps(300*time.Millisecond, func(n int) {
		for i := range 3 {
			key := fmt.Sprint(n, "/", i)
			_ = rdb.Set(s.ctx, names.Value(0, key), "garbage", time.Minute).Err()
			_, _ = c.Get(s.ctx, key)
		}
	})
}

// locks loses one lease with its Redis' data, and cannot renew another.
func (s *shop) locks() {
	for _, fault := range []struct {
		name  string
		lease time.Duration
		hurt  func(*redistest.Server)
	}{
		{"lost", 9 * time.Second, func(server *redistest.Server) { check(s, server.Client(s).FlushAll(s.ctx).Err()) }},
		// Its renewals fail for half a minute before the lease is lost, so that some are scraped.
		{"renewals", 30 * time.Second, func(server *redistest.Server) { server.Kill() }},
	} {
		server := redistest.Start(s)
		locker := redistest.Must(lock.New(server.Client(s), lock.Options{Logger: quiet, Lease: fault.lease}))
		s.Cleanup(func() { _ = locker.Close() })
		_ = redistest.Must(locker.Lock(s.ctx, "order"))
		check(s, cacheprom.RegisterLocker(s.registry, fault.name, locker))
		fault.hurt(server)
	}
}

// staleInPlaceOfErrors has an old value for each read, and a source that is down.
func (s *shop) staleInPlaceOfErrors() {
	var down atomic.Bool
	c := s.open(nil, "fallbacks", func(context.Context, string) (string, error) {
		if down.Load() {
			return "", errDown
		}
		return "lamp", nil
	}, func(o *cache.Options) { o.TTL, o.StaleWhileRevalidate = 100*time.Millisecond, -1 })
	_, _ = c.Get(s.ctx, "a")
	down.Store(true)
	time.Sleep(150 * time.Millisecond)
	s.keeps(20*time.Millisecond, func(int) { _, _ = c.Get(s.ctx, "a") })
}

// staleWhileRefreshed has a short TTL, so that half of its answers are past it. That is what was
// asked for.
func (s *shop) staleWhileRefreshed() {
	c := s.open(nil, "refreshed", func(context.Context, string) (string, error) {
		time.Sleep(100 * time.Millisecond)
		return "lamp", nil
	}, func(o *cache.Options) { o.TTL, o.EarlyRefresh = 100*time.Millisecond, -1 })
	s.keeps(10*time.Millisecond, func(int) { _, _ = c.Get(s.ctx, "a") })
}
