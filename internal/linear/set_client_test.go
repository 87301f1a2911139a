package linear

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

const (
	members  = 3 // caches in each process, with a client and a filter each
	setEpoch = 25 * time.Millisecond
)

// put makes the row of a key exist, or not.
func (b *board) put(key int, v int64) { atomic.StoreInt64(&b.cells[1+key], v) }

// setFilter opens the filter of all rows, which everybody here shares.
func setFilter(rdb redis.UniversalClient, confirm bool) (*bloom.Filter, error) {
	return bloom.Open(context.Background(), rdb, bloom.Options{
		Name: "set", Capacity: boardKeys, Confirm: confirm, MaxTransaction: 500 * time.Millisecond,
		MaxLag: 5 * time.Second, // news is announced; this is for a loaded machine
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
}

// recordSet runs the members for a while, with one Rebuild after the other beside them,
// and returns what they did.
func recordSet(t *testing.T, addr string, length time.Duration, confirm bool) (history []op) {
	t.Helper()
	path := newBoard(t)
	db, err := openBoard(path)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	filter, err := setFilter(rdb, confirm)
	if err != nil {
		t.Fatal(err)
	}
	defer filter.Close()
	scan := func(yield func(string, error) bool) {
		for key := range boardKeys {
			if db.read(key) == 1 && !yield(id(key), nil) {
				return
			}
		}
	}
	if err := insist(func() error { return filter.Rebuild(t.Context(), scan) }); err != nil {
		t.Fatal(err)
	}
	fleet := launch(t, "member", addr, path, length, strconv.FormatBool(confirm))
	ctx, cancel := context.WithCancel(t.Context())
	var rebuilding sync.WaitGroup
	rebuilding.Go(func() {
		for ctx.Err() == nil {
			if err := filter.Rebuild(ctx, scan); err != nil && ctx.Err() == nil && !errors.Is(err, bloom.ErrUnavailable) {
				t.Error(err)
			}
		}
	})
	defer rebuilding.Wait()
	defer cancel()
	return fleet.history(t)
}

// member is a process with several caches, whose callers create, read and delete rows.
func member(p *redistest.Parent, args []string) error {
	a, err := readTask(args)
	if err != nil {
		return err
	}
	confirm := a.args[0] == "true"
	var all []worker
	for m := range members {
		rdb := redis.NewClient(&redis.Options{Addr: a.addr})
		defer rdb.Close()
		filter, err := setFilter(rdb, confirm)
		if err != nil {
			return err
		}
		defer filter.Close()
		c, err := setCache(rdb, filter, a.db)
		if err != nil {
			return err
		}
		defer c.Close()
		for end := time.Now().Add(20 * time.Second); filter.Stats().Abstaining; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return errors.New("the filter goes on abstaining")
			}
		}
		for i := range callers {
			one := &setCaller{id: (a.process*members+m)*callers + i, cache: c, db: a.db}
			all = append(all, func(begin time.Time) ([]op, error) {
				one.run(begin, a.length)
				return one.history, one.failed
			})
		}
	}
	return a.work(p, all)
}

// setCache has no local tier: that may lag behind other processes, as is documented.
func setCache(rdb redis.UniversalClient, filter *bloom.Filter, db *board) (*cache.Cache[int, string], error) {
	o := cache.Options{
		Name: "set", Filter: filter, TTL: valueTTL, NullTTL: valueTTL, RedisTimeout: calm,
		StaleWhileRevalidate: -1, StaleIfError: -1, EarlyRefresh: -1,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	o.Local.MaxBytes = -1
	o.Rebuild.LoadTimeout = 4 * calm
	return cache.New(rdb, func(_ context.Context, key int) (string, error) {
		pause()
		row := db.read(key)
		pause()
		if row == 0 {
			return "", cache.ErrNotFound
		}
		return "row", nil
	}, o)
}

// A setCaller creates, deletes and reads rows and remembers what it saw.
type setCaller struct {
	id      int
	cache   *cache.Cache[int, string]
	db      *board
	history []op
	failed  error
}

func (c *setCaller) run(begin time.Time, length time.Duration) {
	for c.failed == nil {
		// All move on to new keys at about the same time: an id is new to the filter once.
		now := time.Since(begin)
		if now >= length {
			return
		}
		key := int(now/setEpoch)*keys + rand.IntN(keys)
		if now < 0 || key >= boardKeys {
			continue
		}
		done := op{Client: int64(c.id), Key: int64(key), Call: c.db.tick()}
		switch n := rand.IntN(20); {
		case n < 16:
			done.Value, c.failed = c.read(key)
		case n < 19:
			done.Write, done.Value = true, 1
			c.failed = c.write(key, 1)
		default:
			done.Write = true
			c.failed = c.write(key, 0)
		}
		done.Return = c.db.tick()
		c.history = append(c.history, done)
	}
}

func (c *setCaller) read(key int) (int64, error) {
	_, err := c.cache.Get(context.Background(), key)
	switch {
	case err == nil:
		return 1, nil
	case errors.Is(err, cache.ErrNotFound):
		return 0, nil
	}
	return 0, err
}

// write commits once. A busy machine may take longer than a call to Redis may: what was
// not confirmed before the row is begun again, and what was not after it is repeated.
func (c *setCaller) write(key int, v int64) error {
	return insist(func() error {
		committed := false
		err := c.cache.Write(context.Background(), []int{key}, func(context.Context) error {
			pause()
			c.db.put(key, v)
			committed = true
			pause()
			return nil
		})
		if err != nil && committed {
			return insist(func() error { return c.cache.Invalidate(context.Background(), key) })
		}
		return err
	})
}
