package cache_test

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// openFilter opens a shared filter of the ids from 1 to 100, with a copy that answers.
func openFilter(r *rig, rdb redis.UniversalClient) *bloom.Filter {
	r.Helper()
	f, err := bloom.Open(r.ctx, rdb, bloom.Options{
		Name: "test", Capacity: 10_000, FalsePositiveRate: 1e-6, MaxTransaction: -1, MaxLag: 5 * time.Second,
	})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = f.Close() })
	var ids iter.Seq2[string, error] = func(yield func(string, error) bool) {
		for i := 1; i <= 100 && yield(strconv.Itoa(i), nil); i++ {
		}
	}
	redistest.Eventually(r, 20*time.Second, "the filter is built", func() bool { return f.Rebuild(r.ctx, ids) == nil })
	r.eventually("it answers", func() bool { return !f.MayContain(r.ctx, "absent") })
	return f
}

// Without Redis the filter cannot learn, and abstains. A row that exists is in it, so its
// update runs; the row of an insert would be denied afterwards, so it does not run.
func TestAnUpdateNeedsNoRedisBecauseOfAFilter(t *testing.T) {
	t.Parallel() // it waits, most of the time
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real"})
	proxy := redistest.Proxy(t, server.Addr())
	filter := openFilter(r, proxy.Client(t))
	source := newRows(r, 1)
	c := openOn(r, redis.UniversalClient(proxy.Client(t)), source.source(), func(o *cache.Options) { o.Filter = filter })
	careless := openOn(r, redis.UniversalClient(proxy.Client(t)), source.source(), func(o *cache.Options) {
		o.Filter, o.FilterBestEffort = filter, true
	})
	proxy.Refuse(true)
	proxy.Cut()
	r.eventually("the filter abstains", func() bool { return filter.MayContain(r.ctx, "absent") })
	write := func(c *probe[int64, string], key int64) (ran bool, err error) {
		err = c.Write(r.ctx, []int64{key}, func(context.Context) error { ran = true; return nil })
		return ran, err
	}
	if ran, err := write(c, 1); !ran || !errors.Is(err, cache.ErrNotInvalidated) {
		r.Errorf("an update: ran %v, %v", ran, err)
	}
	if ran, err := write(c, 1000); ran || err == nil || errors.Is(err, cache.ErrNotInvalidated) || !errors.Is(err, bloom.ErrUnavailable) || !strings.Contains(err.Error(), "the transaction has not run") {
		r.Errorf("an insert: ran %v, %v", ran, err)
	}
	if err := c.Announce(r.ctx, 1000); err == nil {
		r.Error("Announce gives no error")
	}
	if ran, err := write(careless, 1000); !ran || !errors.Is(err, cache.ErrNotInvalidated) {
		r.Errorf("an insert with FilterBestEffort: ran %v, %v", ran, err)
	}
	proxy.Refuse(false)
	r.eventually("an insert runs again", func() bool { ran, err := write(c, 1001); return ran && err == nil })
	if !filter.MayContain(r.ctx, "1001") {
		r.Error("the filter has not learned of it")
	}
}

// A deleted row goes out of the filter with one Remove, however often it was updated. To
// add the id at each Write fails here.
func TestUpdatesDoNotCountARowAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	filter := redistest.Must(bloom.New(bloom.Options{Capacity: 10_000, Counting: true, Complete: true, MaxTransaction: -1}))
	defer filter.Close()
	c := open(r, newRows(r, 1).source(), func(o *cache.Options) { o.Filter = filter })
	nothing := func(context.Context) error { return nil }
	for _, key := range []int64{1000, 1001} {
		if err := c.Announce(r.ctx, key); err != nil {
			r.Fatal(err)
		}
		for range 10 {
			if err := errors.Join(c.Write(r.ctx, []int64{key}, nothing), c.Set(r.ctx, key, "v")); err != nil {
				r.Fatal(err)
			}
		}
	}
	if err := filter.Remove(r.ctx, "1000"); err != nil {
		r.Fatal(err)
	}
	r.eventually("it is out", func() bool { return !filter.MayContain(r.ctx, "1000") })
	if !filter.MayContain(r.ctx, "1001") {
		r.Error("and so is another")
	}
	// A row of the same id is created again: its Write has the filter learn it.
	if err := c.Write(r.ctx, []int64{1000}, nothing); err != nil || !filter.MayContain(r.ctx, "1000") {
		r.Errorf("created again: %v, denied", err)
	}
}

// A filter that is closed learns of nothing. What names no key needs nothing of it. Catches a log line
// about the first key of none, which panics.
func TestWhatNamesNoKeyNeedsNoFilter(t *testing.T) {
	for _, bestEffort := range []bool{false, true} {
		inBubble(t, cell{redis: "mini", filter: true}, func(r *rig, _ *redistest.MiniServer) {
			c := open(r, newRows(r).source(), func(o *cache.Options) { o.FilterBestEffort = bestEffort })
			r.do(r.exists.Close())
			r.do(cache.Write(r.ctx, func(ctx context.Context) error { return cache.Also(ctx, c.Tagged("b")) }, c.Tagged("a")))
			r.do(c.SetMany(r.ctx, nil))
			r.do(c.Announce(r.ctx))
		})
	}
}
