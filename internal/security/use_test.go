package security

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/lock"
	"github.com/levee-go/levee/mutexrebuild"
)

const patience = 30 * time.Second // for what takes milliseconds

var quiet = slog.New(slog.DiscardHandler)

// must fails the test if something that a package should be able to do fails.
func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func openCache(t *testing.T, rdb redis.UniversalClient, load cache.Loader[int64, string]) *cache.Cache[int64, string] {
	t.Helper()
	c, err := cache.New(rdb, load, cache.Options{
		Name: "product", RedisTimeout: 5 * time.Second, Logger: quiet,
		Local:   localcache.Options{MaxBytes: -1},
		Rebuild: mutexrebuild.Options{ErrorHold: -1},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func checkCache(t *testing.T, rdb redis.UniversalClient) error {
	c := openCache(t, rdb, func(context.Context, int64) (string, error) { return "", nil })
	defer c.Close()
	return c.Check(t.Context())
}

func checkMutexRebuild(t *testing.T, rdb redis.UniversalClient) error {
	g, err := mutexrebuild.New(rdb, mutexrebuild.Keyspace{Name: "product", RedisTimeout: 5 * time.Second, Logger: quiet}, mutexrebuild.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	return g.Check(t.Context())
}

// checkLock asks for a replica that there is not: what the rights to WAIT are for. Without one all else is well.
func checkLock(t *testing.T, rdb redis.UniversalClient) error {
	l, err := lock.New(rdb, lock.Options{Replicas: 1, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = l.Check(t.Context())
	if errors.Is(err, lock.ErrNotReplicated) && !errors.Is(err, lock.ErrConfig) {
		return nil
	}
	return err
}

func checkBloom(t *testing.T, rdb redis.UniversalClient) error {
	f, err := bloom.Open(t.Context(), rdb, bloom.Options{Name: "product", Capacity: 100, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return f.Check(t.Context())
}

// readOnce invalidates and reads a value, as far as that is allowed.
func readOnce(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	c := openCache(t, rdb, func(context.Context, int64) (string, error) { return "value", nil })
	defer c.Close()
	_ = c.Invalidate(t.Context(), 1)
	if v, err := c.Get(t.Context(), 1); v != "value" || err != nil {
		t.Errorf("got %q, %v: a Redis that refuses must not show", v, err)
	}
}

// useCache does with two processes what a service does with its cache.
func useCache(t *testing.T, open func() redis.UniversalClient) {
	ctx := t.Context()
	loads := map[int64]int{}
	var mu sync.Mutex // guards loads
	load := func(_ context.Context, id int64) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if loads[id]++; id < 0 {
			return "", cache.ErrNotFound
		}
		return "v" + strconv.Itoa(loads[id]), nil
	}
	a, b := openCache(t, open(), load), openCache(t, open(), load)
	defer a.Close()
	defer b.Close()
	reads := func(want string, ids ...int64) {
		t.Helper()
		for _, c := range []*cache.Cache[int64, string]{a, b} {
			for _, id := range ids {
				if got, err := c.Get(ctx, id); got != want || err != nil {
					t.Errorf("Get(%d) gives %q, %v, want %q", id, got, err, want)
				}
			}
		}
	}
	reads("v1", 1, 2, 3)
	must(t, "Invalidate", a.Invalidate(ctx, 1, 2, 3))
	must(t, "Clear", a.Clear(ctx))
	reads("v2", 1, 2, 3)
	must(t, "Set", a.Set(ctx, 1, "set"))
	reads("set", 1)
	must(t, "Write", b.Write(ctx, []int64{1, 2}, func(context.Context) error { return nil }))
	reads("v3", 1, 2)
	for range 3 {
		if _, err := a.Get(ctx, -1); !errors.Is(err, cache.ErrNotFound) {
			t.Errorf("Get(-1): %v", err)
		}
	}
	if many, err := b.GetMany(ctx, []int64{1, 2, -1}); len(many) != 2 || err != nil {
		t.Errorf("GetMany gives %v, %v", many, err)
	}
	must(t, "Announce", a.Announce(ctx, -1))
	for _, c := range []*cache.Cache[int64, string]{a, b} {
		redistest.Eventually(t, patience, "invalidations arrive", func() bool { return c.Stats().Live })
		if s := c.Stats(); s.Rebuild.Unknown != 0 || s.Degraded != 0 || s.Rebuild.Refused != 0 {
			t.Errorf("not all went well: %+v", s)
		}
	}
}

// useMutexRebuild takes the ways of a lease that a cache takes seldom.
func useMutexRebuild(t *testing.T, open func() redis.UniversalClient) {
	ctx := t.Context()
	newGroup := func(rdb redis.UniversalClient) *mutexrebuild.Group {
		g, err := mutexrebuild.New(rdb, mutexrebuild.Keyspace{Name: "product", RedisTimeout: 5 * time.Second, Logger: quiet},
			mutexrebuild.Options{Lease: 3 * time.Second, ErrorHold: -1}) // which a busy machine renews in time
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	value := func(text string) ([]byte, time.Duration, error) { return []byte(text), time.Minute, nil }
	rdb, others := open(), open()
	a, b := newGroup(rdb), newGroup(others)
	defer b.Close()
	both := redisconn.OpenLink(rdb) // shares the connection of a's subscription, which has to go without it
	defer both.Close()
	ofB := redisconn.OpenLink(others)
	defer ofB.Close()
	redistest.Eventually(t, patience, "messages arrive", func() bool { return both.Live() && ofB.Live() })

	// One loads for longer than its lease, the other waits for it and is woken.
	got, err := a.Rebuild(ctx, "1", func(context.Context) ([]byte, time.Duration, error) {
		go func() {
			_, _ = b.Rebuild(ctx, "1", func(context.Context) ([]byte, time.Duration, error) { return value("b") })
		}()
		redistest.Eventually(t, patience, "another process waits", func() bool { return b.Stats().Waits > 0 })
		time.Sleep(4 * time.Second)
		return value("a")
	})
	if string(got) != "a" || err != nil {
		t.Errorf("the load of a renewed lease gives %q, %v", got, err)
	}
	redistest.Eventually(t, patience, "the other is woken", func() bool { return b.Stats().Wakes+b.Stats().Polls > 0 })
	if found, err := b.Rebuild(ctx, "1", func(context.Context) ([]byte, time.Duration, error) { return value("c") }); string(found) != "a" || err != nil {
		t.Errorf("after the load of a renewed lease there stands %q, %v", found, err)
	}

	failure := errors.New("no")
	if _, err := a.Rebuild(ctx, "2", func(context.Context) ([]byte, time.Duration, error) { return nil, 0, failure }); !errors.Is(err, failure) {
		t.Error(err)
	}
	must(t, "Set", a.Set(ctx, "2", []byte("set"), time.Minute))
	end, err := a.Hold(ctx, "1", "2")
	must(t, "Hold", err)
	must(t, "the end of a hold", end(ctx))
	must(t, "Invalidate", b.Invalidate(ctx, "1"))
	if s := a.Stats(); s.Unknown+s.Refused != 0 {
		t.Errorf("not all went well: %+v", s)
	}
	a.Close()
	must(t, "any command after the unsubscription", waitFor(func() error { return gone(ctx, rdb, keys.OfCache("product").Messages()) }))
}

// gone reports an error as long as two processes hear a channel.
func gone(ctx context.Context, rdb redis.UniversalClient, channel string) error {
	// PUBLISH tells how many heard it.
	n, err := rdb.Publish(ctx, channel, "").Result()
	if err == nil && n > 1 {
		err = fmt.Errorf("%d hear %s", n, channel)
	}
	return err
}

func waitFor(do func() error) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if err = do(); err == nil {
			return nil
		}
	}
	return err
}

// useFeed has two processes follow a feed, one after the other.
func useFeed(t *testing.T, open func() redis.UniversalClient) {
	feed := &oneChange{confirmed: make(chan struct{}, 10)}
	ctx, cancel := context.WithCancel(t.Context())
	var followers sync.WaitGroup
	defer followers.Wait()
	defer cancel()
	for range 2 {
		c := openCache(t, open(), func(context.Context, int64) (string, error) { return "value", nil })
		t.Cleanup(func() { _ = c.Close() })
		one, stop := context.WithCancel(ctx)
		followers.Go(func() {
			if err := c.Follow(one, feed); !errors.Is(err, context.Canceled) {
				t.Errorf("Follow: %v", err)
			}
		})
		redistest.Eventually(t, patience, "a change is confirmed", func() bool { return len(feed.confirmed) > 0 })
		stop()
		followers.Wait()
		<-feed.confirmed
	}
}

// oneChange is a feed with a change in each stream.
type oneChange struct{ confirmed chan struct{} }

func (f *oneChange) Name() string { return "shop" }
func (f *oneChange) Open(context.Context, feed.Position) (feed.Stream, error) {
	return &oneStream{feed: f}, nil
}

type oneStream struct {
	feed *oneChange
	told bool
}

func (s *oneStream) Next(ctx context.Context) (feed.Batch, error) {
	if s.told {
		<-ctx.Done()
		return feed.Batch{}, ctx.Err()
	}
	s.told = true
	change := feed.Change{Table: "product", Kind: feed.Updated, New: feed.Row{"id": int64(1)}, Key: []string{"id"}}
	return feed.Batch{Changes: []feed.Change{change}, Position: feed.Position{Text: "1", Order: 1}}, nil
}

func (s *oneStream) Confirm(context.Context, feed.Position) error {
	if s.told {
		s.feed.confirmed <- struct{}{}
	}
	return nil
}

func (s *oneStream) Close() error { return nil }

// useLock takes locks of all kinds, from two processes.
func useLock(t *testing.T, open func() redis.UniversalClient) {
	ctx := t.Context()
	rdb := open()
	newLocker := func(rdb redis.UniversalClient) *lock.Locker {
		l, err := lock.New(rdb, lock.Options{Lease: 3 * time.Second, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	a, b := newLocker(rdb), newLocker(open())
	both := redisconn.OpenLink(rdb)
	defer both.Close()
	defer b.Close()
	defer a.Close()
	take := func(l *lock.Lease, err error) *lock.Lease {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	give := func(leases ...*lock.Lease) {
		t.Helper()
		for _, l := range leases {
			must(t, "Unlock", l.Unlock(ctx))
		}
	}
	// waiting has b wait for what a holds, gives it back, and takes b's turn.
	waiting := func(held *lock.Lease, lock func() (*lock.Lease, error), name string) {
		t.Helper()
		var waiters sync.WaitGroup
		waiters.Go(func() { give(take(lock())) })
		if name != "" {
			redistest.Eventually(t, patience, "somebody waits", func() bool {
				info, err := a.Inspect(ctx, name)
				must(t, "Inspect", err)
				return info.Waiting > 0
			})
		}
		must(t, "Check", held.Check(ctx))
		give(held)
		waiters.Wait()
	}

	waiting(take(a.Lock(ctx, "1")), func() (*lock.Lease, error) { return b.Lock(ctx, "1") }, "1")
	rw, other := a.RW("1"), b.RW("1")
	waiting(take(rw.Lock(ctx)), func() (*lock.Lease, error) { return other.RLock(ctx) }, "")
	waiting(take(rw.RLock(ctx)), func() (*lock.Lease, error) { return other.Lock(ctx) }, "")
	two := b.Semaphore("1", 1)
	waiting(take(a.Semaphore("1", 1).Acquire(ctx)), func() (*lock.Lease, error) { return two.Acquire(ctx) }, "")

	reader := take(rw.RLock(ctx))
	if info, err := other.Inspect(ctx); err != nil || info.Holders != 1 {
		t.Errorf("Inspect: %+v, %v", info, err)
	}
	give(reader)
	take(rw.RLock(ctx))
	if forced, err := other.ForceUnlock(ctx); err != nil || !forced {
		t.Errorf("ForceUnlock: %v, %v", forced, err)
	}

	held := take(a.Lock(ctx, "1"))
	if _, err := b.TryLock(ctx, "1"); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("TryLock: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := b.Lock(short, "1"); err == nil { // it stands in the queue, and leaves
		t.Error("a lock is held twice")
	}
	token, err := held.Detach(ctx, 20*time.Second)
	must(t, "Detach", err)
	attached := take(b.Attach(ctx, token))
	give(attached)
	give(take(a.LockAll(ctx, "1", "2")))
	part, _, err := a.Striped("1", 4).LockAny(ctx)
	give(take(part, err))
	for _, l := range []*lock.Locker{a, b} {
		_, err := l.Once(ctx, "1", time.Minute, func(context.Context) error { return nil })
		must(t, "Once", err)
	}
	if _, err := a.With(lock.Options{Replicas: 1, ReplicaTimeout: time.Millisecond}).Lock(ctx, "3"); !errors.Is(err, lock.ErrNotReplicated) {
		t.Errorf("without replicas: %v", err)
	}
	must(t, "Close", a.Close())
}

// useBloom does with two processes what a service does with its filter.
func useBloom(t *testing.T, open func() redis.UniversalClient) {
	ctx := t.Context()
	rdb := open()
	newFilter := func(rdb redis.UniversalClient, capacity uint64) *bloom.Filter {
		f, err := bloom.Open(ctx, rdb, bloom.Options{
			Name: "product", Capacity: capacity, MaxTransaction: -1, Logger: quiet,
		})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	must(t, "Close", newFilter(rdb, 1000).Close()) // it has made the record and the log
	makeOld(t, rdb, keys.BloomFilter("product"))
	a, b := newFilter(rdb, 1000), newFilter(open(), 2000)
	both := redisconn.OpenLink(rdb)
	defer both.Close()
	defer b.Close()
	must(t, "Add", a.Add(ctx, "1"))
	for range 2 { // the first snapshot, and one in place of another
		must(t, "Rebuild", a.Rebuild(ctx, func(yield func(string, error) bool) {
			must(t, "Add during Rebuild", b.Add(ctx, "3"))
			yield("2", nil)
		}))
		for _, f := range []*bloom.Filter{a, b} {
			redistest.Eventually(t, patience, "the filter answers", func() bool { return !f.Stats().Abstaining })
		}
	}
	failure := errors.New("no")
	err := b.Rebuild(ctx, func(yield func(string, error) bool) { yield("", failure) })
	if !errors.Is(err, failure) {
		t.Errorf("Rebuild: %v", err)
	}
	must(t, "Add", b.Add(ctx, "4"))
	redistest.Eventually(t, patience, "the other process hears of it", func() bool { return a.MayContain(ctx, "4") })
	redistest.Eventually(t, patience, "the filter denies what was not added", func() bool {
		passed := slices.DeleteFunc([]string{"1", "5", "6", "7", "8", "9"}, func(id string) bool { return !b.MayContain(ctx, id) })
		return len(passed) <= 2
	})
	must(t, "Close", a.Close())
}

// makeOld dates the log of a filter back, so that an Add finds something to trim.
func makeOld(t *testing.T, rdb redis.UniversalClient, names keys.Filter) {
	ctx := t.Context()
	must(t, "DEL", rdb.Del(ctx, names.Log()).Err())
	must(t, "XADD", rdb.XAdd(ctx, &redis.XAddArgs{Stream: names.Log(), ID: "1-1", Values: []string{"begin", ""}}).Err())
	must(t, "HSET", rdb.HSet(ctx, names.Record(), "last", "1-1", "at", "1-1").Err())
}
