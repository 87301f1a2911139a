package feedtest

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// A lateFeed cannot be opened until it is ready, as with a missing GRANT.
type lateFeed struct {
	feed.Feed
	ready *atomic.Bool
}

func (f lateFeed) Open(ctx context.Context, from feed.Position) (feed.Stream, error) {
	if !f.ready.Load() {
		return nil, errors.New("not granted")
	}
	return f.Feed.Open(ctx, from)
}

// NoRowIsDenied lets two processes with a filter follow a table. Rows are inserted by SQL while
// no process can learn of them: before the feed can be opened for the first time, while the Redis
// of the cache is down and comes back empty, and while it is down and the process that follows
// goes away. No row may be denied for longer than a rebuild of the filter takes. The table is
// empty at first; ids returns the ids of its rows.
func NoRowIsDenied(t *testing.T, d Database, ids func() []int64, insert func(id int64)) {
	mine, filters := redistest.Start(t), redistest.Start(t)
	var ready atomic.Bool
	var work sync.WaitGroup
	defer work.Wait()
	var caches []*cache.Cache[int64, string]
	var blooms []*bloom.Filter
	var leave []context.CancelFunc
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	scan := func(context.Context) iter.Seq2[int64, error] {
		return func(yield func(int64, error) bool) {
			for _, id := range ids() {
				if !yield(id, nil) {
					return
				}
			}
		}
	}
	quiet := slog.New(slog.DiscardHandler)
	for range 2 {
		f, err := bloom.Open(ctx, filters.Client(t), bloom.Options{Name: "product", Capacity: 10_000, MaxLag: 300 * time.Millisecond, MaxTransaction: -1, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		c, err := cache.New(mine.Client(t), d.Reader(), cache.Options{
			Name: "product", Filter: f, Logger: quiet, IsNotFound: func(error) bool { return true },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		follow, end := context.WithCancel(ctx)
		caches, blooms, leave = append(caches, c), append(blooms, f), append(leave, end)
		source := lateFeed{d.Feed(), &ready}
		work.Go(func() { _ = cache.Follow(follow, source, c.Route(d.Table, nil)) })
		work.Go(func() { _ = c.KeepFilter(ctx, 24*time.Hour, scan) })
	}
	denied := func(id int64) bool {
		return !slices.ContainsFunc(blooms, func(f *bloom.Filter) bool { return f.MayContain(ctx, strconv.FormatInt(id, 10)) })
	}
	found := func(when string, ids ...int64) {
		t.Helper()
		begin := time.Now()
		for _, c := range caches {
			for _, id := range ids {
				redistest.Eventually(t, time.Minute, "a row is found that came "+when, func() bool { _, err := c.Get(ctx, id); return err == nil })
			}
		}
		t.Logf("rows that came %s are found after %v", when, time.Since(begin))
		redistest.Eventually(t, time.Minute, "the filter denies what does not exist", func() bool { return denied(99_999) })
	}

	redistest.Eventually(t, time.Minute, "the filter of the empty table denies all", func() bool { return denied(1) })
	for id := range int64(200) {
		insert(id + 1)
	}
	if !denied(200) {
		t.Errorf("the filter has heard of a row without a feed")
	}
	ready.Store(true)
	found("before the feed was opened", 1, 100, 200)

	insert(1000)
	found("while all is well", 1000)
	mine.Kill()
	insert(1001)
	mine.Restart()
	found("while Redis was down", 1001)
	insert(1002)
	found("after it", 1002)

	leader := slices.IndexFunc(caches, func(c *cache.Cache[int64, string]) bool { return c.Stats().Follow.Following })
	if leader < 0 {
		leader = 0
	}
	mine.Kill()
	leave[leader]()
	insert(1003)
	mine.Restart()
	found("while Redis was down and the follower went away", 1003)
}
