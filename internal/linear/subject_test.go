package linear

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/mutexrebuild"
)

// A subject is what callers read and write through: a cache or a group. Its writes
// are repeated until they are confirmed; before that nothing is promised.
type subject interface {
	read(keys []int) (versions []int64, err error)
	write(key int, commit func()) error // commit runs within it, once
	invalidate(key int) error
	set(key int, version int64) error
	refresh(key int) error
	close()
}

// newSubject makes the nth subject of its kind in a process.
func newSubject(kind string, process, n int, rdb redis.UniversalClient, db *board, patience time.Duration) (subject, error) {
	switch kind {
	case "cache":
		return newCached(n, 0, rdb, db, patience)
	case "releases":
		return newReleases(process, n, rdb, db, patience)
	case "clears":
		c, err := newCached(2, 0, rdb, db, patience)
		return clears{c}, err
	case "tags":
		c, err := newTagged(process, rdb, db, patience)
		return tagged{c}, err
	case "feeds":
		c, err := newCached(n, 0, rdb, db, patience)
		return fed{c, db}, err
	case "unmodified":
		return newUnmodified(n, rdb, db, patience)
	case "skiplocal":
		return newAround(rdb, db, patience)
	case "maxage":
		return newUnheard(rdb, db, patience)
	case "failing":
		return newFailing(rdb, db, patience)
	case "nested":
		return newNested(n, rdb, db, patience)
	case "group":
		return newRebuilt(rdb, db, patience)
	}
	return nil, fmt.Errorf("no kind of subject: %q", kind)
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func id(key int) string { return strconv.Itoa(key) }

// load is a query: the version is read at some time between its begin and its end.
func load(db *board, key int) int64 {
	way := pause
	if db.far {
		way = func() { time.Sleep(rand.N(2 * time.Millisecond)) }
	}
	way()
	version := db.read(key)
	way()
	return version
}

// cached is a cache. It has no local tier: that may lag behind other processes, as is
// documented.
type cached struct{ *cache.Cache[int, int64] }

// newCached makes caches of all kinds of sources, every other one of which answers
// with values past their TTL and refreshes them.
func newCached(n, schema int, rdb redis.UniversalClient, db *board, patience time.Duration) (subject, error) {
	o := cache.Options{
		Name: "linear", Schema: schema, TTL: valueTTL, RedisTimeout: patience, Logger: quiet,
		StaleWhileRevalidate: -1, StaleIfError: -1, EarlyRefresh: -1,
		Local:   localcache.Options{MaxBytes: -1},
		Rebuild: mutexrebuild.Options{ErrorHold: -1},
	}
	if n%2 == 1 {
		o.StaleWhileRevalidate, o.EarlyRefresh = valueTTL, 0
	}
	one := func(_ context.Context, key int) (int64, error) { return load(db, key), nil }
	many := func(_ context.Context, keys []int) (map[int]int64, error) {
		versions := map[int]int64{}
		for _, key := range keys {
			versions[key] = load(db, key)
		}
		return versions, nil
	}
	source := []cache.Source[int, int64]{{Load: one}, {LoadMany: many}, {Load: one, LoadMany: many}}[n%3]
	c, err := cache.NewFrom(rdb, source, o)
	return cached{c}, err
}

// newUnmodified makes caches whose loader is told what it replaces. The source has a weak
// notion of what has changed, four versions of which pass for one: a value that somebody has
// invalidated must not get there.
func newUnmodified(n int, rdb redis.UniversalClient, db *board, patience time.Duration) (subject, error) {
	o := cache.Options{
		Name: "linear", TTL: 2 * time.Millisecond, RedisTimeout: patience, Logger: quiet,
		StaleWhileRevalidate: -1, StaleIfError: 10 * valueTTL, EarlyRefresh: -1,
		Local:   localcache.Options{MaxBytes: -1},
		Rebuild: mutexrebuild.Options{ErrorHold: -1},
	}
	if n%2 == 1 {
		o.StaleWhileRevalidate, o.EarlyRefresh = 10*valueTTL, 0
	}
	c, err := cache.NewFrom(rdb, cache.Source[int, int64]{LoadEntry: func(_ context.Context, key int, e *cache.Entry[int64]) (int64, error) {
		version := load(db, key)
		weak := strconv.FormatInt(version/4, 10)
		if e.Prev != nil && e.Version == weak {
			return 0, cache.ErrNotModified
		}
		e.Version = weak
		return version, nil
	}}, o)
	return cached{c}, err
}

// read is a Get, or a GetMany of several keys.
func (c cached) read(keys []int) ([]int64, error) { return readFrom(c.Cache, keys) }

// readFrom is a Get, or a GetMany of several keys.
func readFrom(c interface {
	Get(ctx context.Context, key int) (int64, error)
	GetMany(ctx context.Context, keys []int) (map[int]int64, error)
}, keys []int) ([]int64, error) {
	ctx := context.Background()
	if len(keys) == 1 {
		version, err := c.Get(ctx, keys[0])
		return []int64{version}, err
	}
	values, err := c.GetMany(ctx, keys)
	versions := make([]int64, len(keys))
	for i, key := range keys {
		version, ok := values[key]
		if !ok && err == nil {
			err = fmt.Errorf("GetMany leaves out %d", key)
		}
		versions[i] = version
	}
	return versions, err
}

// write commits once. What was not confirmed before the commit is begun again, and what
// was not after it is repeated. Some transactions find their key inside, or write it in a
// Write of their own that ends before the commit.
func (c cached) write(key int, commit func()) error {
	how := rand.IntN(4)
	return insist(func() error {
		committed := false
		var named []cache.Changes
		if how > 1 {
			named = append(named, c.Changes(key))
		}
		err := cache.Write(context.Background(), func(ctx context.Context) (err error) {
			pause()
			switch how {
			case 0:
				err = cache.Also(ctx, c.Changes(key))
			case 1:
				err = c.Write(ctx, []int{key}, func(context.Context) error { pause(); return nil })
			}
			if err != nil {
				return err
			}
			commit()
			committed = true
			pause()
			return nil
		}, named...)
		if err != nil && committed {
			return c.invalidate(key)
		}
		return err
	})
}

func (c cached) invalidate(key int) error {
	return insist(func() error { return c.Invalidate(context.Background(), key) })
}

func (c cached) set(key int, version int64) error {
	return insist(func() error { return c.Set(context.Background(), key, version) })
}

func (c cached) refresh(key int) error {
	return insist(func() error { return c.Refresh(context.Background(), key) })
}

func (c cached) close() { _ = c.Close() }

// releases is a cache in a rolling deployment. Its process has one of two releases at a
// time, with different Schemas, and goes from one to the other and back. Half of the time
// the two processes have different ones.
type releases struct {
	process int
	of      [2]subject
}

// releaseLife is shorter than the life of a value: what a process left behind in one
// release is still there when it comes back to it.
const releaseLife = 8 * time.Millisecond

func newReleases(process, n int, rdb redis.UniversalClient, db *board, patience time.Duration) (r releases, err error) {
	r.process = process
	for i := range r.of {
		if r.of[i], err = newCached(n, 1+i, rdb, db, patience); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (r releases) now() subject {
	step := time.Now().UnixNano() / int64(releaseLife) % 4
	return r.of[[][4]int{{0, 0, 1, 1}, {0, 1, 1, 0}}[r.process%2][step]]
}

func (r releases) read(keys []int) ([]int64, error)   { return r.now().read(keys) }
func (r releases) write(key int, commit func()) error { return r.now().write(key, commit) }
func (r releases) invalidate(key int) error           { return r.now().invalidate(key) }
func (r releases) set(key int, version int64) error   { return r.now().set(key, version) }
func (r releases) refresh(key int) error              { return r.now().refresh(key) }
func (r releases) close()                             { r.of[0].close(); r.of[1].close() }

// clears is a cache whose writers clear all of it where others invalidate a key. A Clear
// holds at once only in its own process, so each process has one cache and keys of its
// own; the Clears of the other one come in between.
type clears struct{ subject }

func (c clears) write(key int, commit func()) error {
	if rand.IntN(2) == 0 {
		return c.subject.write(key, commit)
	}
	commit()
	pause()
	return c.invalidate(key)
}

func (c clears) invalidate(int) error {
	return insist(func() error { return c.subject.(cached).Clear(context.Background()) })
}

// newTagged makes a cache whose values have a tag of their own and one that all have. In the first
// process it has a local tier: what is its own process' to clear ends there at once.
func newTagged(process int, rdb redis.UniversalClient, db *board, patience time.Duration) (subject, error) {
	one := func(_ context.Context, key int) (int64, error) { return load(db, key), nil }
	o := cache.Options{
		Name: "linear", Schema: process % 2, TTL: 10 * valueTTL, RedisTimeout: patience, Logger: quiet,
		Rebuild: mutexrebuild.Options{ErrorHold: -1}, Seal: sealed{}, Local: small,
	}
	if !hasLocalTier(process) {
		o.Local.MaxBytes = -1
	}
	c, err := cache.NewFrom(rdb, cache.Source[int, int64]{
		Load: one,
		Tags: func(key int, _ int64) []string { return []string{id(key), "all"} },
	}, o)
	return cached{c}, err
}

// small are local tiers of a history. To make and close one of the default size takes 50 ms with the race detector.
var small = localcache.Options{MaxBytes: 1 << 20, MaxNullBytes: 1 << 20}

// hasLocalTier reports whether the tagged cache of a process has one.
func hasLocalTier(process int) bool { return process == 0 }

// sealed is a Sealer that encrypts nothing: what it opens must be bound to what it was sealed with.
type sealed struct{}

func (sealed) Seal(plain, bound []byte) ([]byte, error) {
	sum := sha256.Sum256(bound)
	return append(sum[:], plain...), nil
}

func (sealed) Open(data, bound []byte) ([]byte, error) {
	if sum := sha256.Sum256(bound); !bytes.HasPrefix(data, sum[:]) {
		return nil, errors.New("sealed with something else")
	}
	return data[sha256.Size:], nil
}

// tagged is a cache whose writers clear tags or expire keys where others invalidate them, in a
// Write or by themselves, and now and then everything. As with clears each process has one cache, which
// answers in its own process; the two have different Schemas.
type tagged struct{ subject }

func (c tagged) write(key int, commit func()) error {
	switch rand.IntN(4) {
	case 0:
		return c.subject.write(key, commit)
	case 1:
		products, committed := c.subject.(cached), false
		return insist(func() error {
			if committed {
				return products.ClearTags(context.Background(), id(key))
			}
			return cache.Write(context.Background(), func(context.Context) error {
				pause()
				commit()
				committed = true
				pause()
				return nil
			}, products.Tagged(id(key)))
		})
	}
	commit()
	pause()
	return c.invalidate(key)
}

func (c tagged) invalidate(key int) error {
	products, tag := c.subject.(cached), id(key)
	switch rand.IntN(8) {
	case 0:
		return insist(func() error { return products.Clear(context.Background()) })
	case 2, 3, 4:
		return insist(func() error { return products.Expire(context.Background(), key) })
	case 1:
		tag = "all"
	}
	return insist(func() error { return products.ClearTags(context.Background(), "another", tag) })
}

// rebuilt is a group by itself.
type rebuilt struct {
	*mutexrebuild.Group
	db *board
}

func newRebuilt(rdb redis.UniversalClient, db *board, patience time.Duration) (subject, error) {
	g, err := mutexrebuild.New(rdb, mutexrebuild.Keyspace{Name: "linear", RedisTimeout: patience, Logger: quiet},
		mutexrebuild.Options{ErrorHold: -1})
	return rebuilt{g, db}, err
}

func (g rebuilt) read(keys []int) (versions []int64, err error) {
	for _, key := range keys { // a group has no batches, and callers ask for one
		data, err := g.Rebuild(context.Background(), id(key), func(context.Context) ([]byte, time.Duration, error) {
			return encoded(load(g.db, key)), valueTTL, nil
		})
		if err != nil {
			return nil, err
		}
		version, err := strconv.ParseInt(string(data), 10, 64)
		if err != nil {
			return nil, err
		}
		versions = append(versions, version)
	}
	return versions, nil
}

func encoded(version int64) []byte { return strconv.AppendInt(nil, version, 10) }

// write holds the key, as cache.Write does.
func (g rebuilt) write(key int, commit func()) error {
	ctx := context.Background()
	var end func(context.Context) error
	err := insist(func() (err error) { end, err = g.Hold(ctx, id(key)); return err })
	if err != nil {
		return err
	}
	pause()
	commit()
	pause()
	return insist(func() error { return end(ctx) })
}

func (g rebuilt) invalidate(key int) error {
	return insist(func() error { return g.Invalidate(context.Background(), id(key)) })
}

func (g rebuilt) set(key int, version int64) error {
	return insist(func() error { return g.Set(context.Background(), id(key), encoded(version), valueTTL) })
}

// refresh is an invalidation: a group by itself leaves the load to its caller.
func (g rebuilt) refresh(key int) error { return g.invalidate(key) }

func (g rebuilt) close() { g.Close() }

func insist(do func() error) (err error) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err = do(); err == nil {
			return nil
		}
	}
	return err
}
