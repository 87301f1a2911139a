package linear

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

const (
	members  = 3 // caches in each process, with a client and a filter each
	setKeys  = 64
	setEpoch = 400 * time.Millisecond
	setLag   = 100 * time.Millisecond // how far a no of a filter may be behind
)

// put makes the row of a key exist, or not.
func (b *board) put(key int, v int64) { atomic.StoreInt64(&b.cells[1+key], v) }

// setSizes are those of the filter: a Rebuild makes it that of the process that runs it.
var setSizes = []bloom.Options{
	{Capacity: boardKeys, FalsePositiveRate: 0.01},
	{Capacity: 40 * boardKeys, FalsePositiveRate: 1e-5}, // in several pieces
}

// setFilter opens the filter of all rows, which everybody here shares.
func setFilter(rdb redis.UniversalClient, o bloom.Options) (*bloom.Filter, error) {
	o.Name, o.MaxLag, o.MaxTransaction = "set", setLag, 500*time.Millisecond
	o.Logger = slog.New(slog.DiscardHandler)
	return bloom.Open(context.Background(), rdb, o)
}

// recordSet runs the members for a while, with one Rebuild after the other beside them that
// make the filter large and small in turn, and returns what they did.
func recordSet(t *testing.T, addr string, length time.Duration) (history []op) {
	t.Helper()
	path := newBoard(t)
	db, err := openBoard(path)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	var filters []*bloom.Filter
	for _, size := range setSizes {
		filter, err := setFilter(rdb, size)
		if err != nil {
			t.Fatal(err)
		}
		defer filter.Close()
		filters = append(filters, filter)
	}
	scan := func(yield func(string, error) bool) {
		for key := range boardKeys {
			if db.read(key) == 1 && !yield(id(key), nil) {
				return
			}
		}
	}
	if err := insist(func() error { return filters[0].Rebuild(t.Context(), scan) }); err != nil {
		t.Fatal(err)
	}
	fleet := launch(t, "member", addr, path, length)
	ctx, cancel := context.WithCancel(t.Context())
	var rebuilding sync.WaitGroup
	rebuilding.Go(func() {
		for i := 1; ctx.Err() == nil; i++ {
			if err := filters[i%len(filters)].Rebuild(ctx, scan); err != nil && ctx.Err() == nil && !errors.Is(err, bloom.ErrUnavailable) {
				t.Error(err)
			}
			time.Sleep(rand.N(setEpoch / 4)) // in which the members load it, or not
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
	var all []worker
	for m := range members {
		wrote := make([]atomic.Int64, boardKeys)
		rdb := redis.NewClient(&redis.Options{Addr: a.addr})
		defer rdb.Close()
		filter, err := setFilter(rdb, setSizes[m%len(setSizes)])
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
			one := &setCaller{id: (a.process*members+m)*callers + i, cache: c, db: a.db, wrote: wrote}
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
		Logger: slog.New(slog.DiscardHandler),
	}
	o.Local.MaxBytes = -1
	o.Breaker = redistest.Must(breaker.New(breaker.Options{Name: "set", Timeout: 4 * calm, Logger: o.Logger}))
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
	wrote   []atomic.Int64 // by key, when a caller of this cache had last put the row there
	history []op
	called  []time.Time // by operation of the history
	failed  error
}

func (c *setCaller) run(begin time.Time, length time.Duration) {
	for c.failed == nil {
		// All move on to new keys at about the same time: an id is new to the filter once.
		now := time.Since(begin)
		if now >= length {
			return
		}
		key := int(now/setEpoch)*setKeys + rand.IntN(setKeys)
		if now < 0 || key >= boardKeys {
			continue
		}
		own := c.wrote[key].Load()
		at := time.Now()
		done := op{Client: int64(c.id), Key: int64(key), Call: c.db.tick()}
		done.Since = done.Call
		switch n := rand.IntN(20); {
		case n < 16:
			var lags bool
			if done.Value, lags, c.failed = c.read(key); lags {
				done.Since = max(own, c.before(at.Add(-setLag)))
			}
		case n < 19:
			done.Write, done.Value = true, 1
			c.failed = c.write(key, 1)
		default:
			done.Write = true
			c.failed = c.write(key, 0)
		}
		done.Return = c.db.tick()
		if done.Write && done.Value == 1 {
			c.wrote[key].Store(done.Return)
		}
		c.history, c.called = append(c.history, done), append(c.called, at)
	}
}

// before returns when the last operation was called that this caller had begun by a moment:
// what had returned to anybody before that call had returned before the moment.
func (c *setCaller) before(moment time.Time) int64 {
	n, _ := slices.BinarySearchFunc(c.called, moment, time.Time.Compare)
	if n == 0 {
		return 0
	}
	return c.history[n-1].Call
}

// read returns 1 for a row, and whether it is the filter that says there is none.
func (c *setCaller) read(key int) (v int64, lags bool, err error) {
	got, err := c.cache.Fetch(context.Background(), key)
	switch {
	case err == nil:
		return 1, false, nil
	case errors.Is(err, cache.ErrNotFound):
		return 0, got.Tier == cache.TierFilter, nil
	}
	return 0, false, err
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
