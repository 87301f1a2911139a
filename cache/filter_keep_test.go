package cache_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// scans counts the scans of a table with some keys. The next fails of them fail.
type scans struct {
	keys         []int64
	takes        time.Duration
	begun, fails atomic.Int64
}

func (s *scans) scan(ctx context.Context) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		s.begun.Add(1)
		fails := s.fails.Add(-1) >= 0
		select {
		case <-time.After(s.takes):
		case <-ctx.Done():
		}
		for _, key := range s.keys {
			if !yield(key, nil) {
				return
			}
		}
		if fails {
			yield(0, errBroken)
		}
	}
}

// sharedFilter opens a filter as another process does.
func sharedFilter(r *rig, change ...func(*bloom.Options)) *bloom.Filter {
	o := bloom.Options{Name: "test", Capacity: 10_000, FalsePositiveRate: 1e-6, MaxTransaction: -1, MaxLag: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(&o)
	}
	f := redistest.Must(bloom.Open(r.ctx, r.client(), o))
	r.Cleanup(func() { _ = f.Close() })
	return f
}

// keeping runs KeepFilter until stop, which returns its error.
func keeping(r *rig, c *probe[int64, string], every time.Duration, scan func(context.Context) iter.Seq2[int64, error]) (stop func() error) {
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.KeepFilter(ctx, every, scan) }()
	return func() error { cancel(); return <-ended }
}

// Three processes keep one filter for three periods. Each rebuild that they do not leave to
// one of them is another scan of the table: without the look at the last one, three at
// every look.
func TestAFleetThatKeepsAFilterScansOnceInAPeriod(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		const every, periods = time.Minute, 3
		s := &scans{keys: []int64{1, 2, 3}, takes: 2 * time.Second}
		var caches []*probe[int64, string]
		var stops []func() error
		for range 3 {
			filter := sharedFilter(r)
			c := open(r, newRows(r, 1, 2, 3).source(), func(o *cache.Options) { o.Filter = filter })
			caches, stops = append(caches, c), append(stops, keeping(r, c, every, s.scan))
		}
		time.Sleep(20 * time.Second)
		if n := s.begun.Load(); n != 1 {
			r.Errorf("%d scans at first", n)
		}
		for _, c := range caches {
			c.gives(r, 1, "v1")
			if got, err := c.Fetch(r.ctx, 4); !errors.Is(err, cache.ErrNotFound) || got.Tier != cache.TierFilter {
				r.Errorf("the filter does not answer: %+v, %v", got, err)
			}
		}
		time.Sleep(periods * every)
		if n := s.begun.Load(); n < periods-1 || n > periods*10/9+2 {
			r.Errorf("%d scans in %d periods", n, periods)
		}
		for _, stop := range stops {
			if err := stop(); !errors.Is(err, context.Canceled) {
				r.Errorf("at the end: %v", err)
			}
		}
		ran := 0
		for _, c := range caches {
			if last := c.Stats().FilterRebuild; !last.Ended.IsZero() {
				ran++
				if last.Keys != 3 || last.Err != "" || last.Took < s.takes || time.Since(last.Ended) > (periods+1)*every {
					r.Errorf("%+v", last)
				}
			}
		}
		if ran == 0 {
			r.Error("nobody knows of the last rebuild")
		}
	})
}

// Without Redis, and with a filter of its own, each process scans for itself.
func TestAProcessKeepsItsOwnFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cell{redis: "none"}, nil)
		_, with := filtered(r)
		s := &scans{keys: []int64{1}}
		c := open(r, newRows(r, 1).source(), with)
		stop := keeping(r, c, time.Minute, s.scan)
		time.Sleep(10*time.Minute + 20*time.Second)
		if n := s.begun.Load(); n < 10 || n > 13 {
			r.Errorf("%d scans in ten periods", n)
		}
		_ = stop()
	})
}

// A scan that fails is tried again with pauses: not at once, and not only in the next
// period. Until one succeeds every key passes, and Stats says why.
func TestAKeptFilterOutlivesScansThatFail(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		var log redistest.Log
		filter := sharedFilter(r)
		s := &scans{keys: []int64{1, 2}}
		s.fails.Store(8)
		c := open(r, newRows(r, 1, 2).source(), func(o *cache.Options) { o.Filter, o.Logger = filter, log.Logger() })
		stop := keeping(r, c, 24*time.Hour, s.scan)
		time.Sleep(100 * time.Second)
		if n := s.begun.Load(); n < 5 || n > 8 {
			r.Errorf("%d scans in 100 s of failures", n)
		}
		if last := c.Stats().FilterRebuild; last.Err == "" || last.Keys != 2 {
			r.Errorf("%+v", last)
		}
		if n := log.Count("the filter was not rebuilt"); n < 1 || n > 2 {
			r.Errorf("logged %d times", n) // each kind once a minute
		}
		time.Sleep(3 * time.Minute)
		if n, last := s.begun.Load(), c.Stats().FilterRebuild; n != 9 || last.Err != "" || filter.Stats().Abstaining {
			r.Errorf("%d scans, %+v", n, last)
		}
		_ = stop()
	})
}

// Redis loses the filter in the middle of a period: it is rebuilt within seconds.
func TestAKeptFilterThatRedisLosesIsRebuilt(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		filter := sharedFilter(r)
		s := &scans{keys: []int64{1}}
		c := open(r, newRows(r, 1).source(), func(o *cache.Options) { o.Filter = filter })
		stop := keeping(r, c, 24*time.Hour, s.scan)
		time.Sleep(time.Minute)
		if err := r.rdb.FlushAll(r.ctx).Err(); err != nil {
			r.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := s.begun.Load(); n != 2 || filter.Stats().Abstaining {
			r.Errorf("%d scans, %+v", n, filter.Stats())
		}
		_ = stop()
	})
}

// A scan under way ends with KeepFilter's context, and the filter stays as it was: it still
// knows the keys of the rebuild before, and denies others.
func TestAKeptFilterEndsWithItsContextInAScan(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		filter := sharedFilter(r)
		first, second := &scans{keys: []int64{1}}, &scans{takes: time.Hour}
		c := open(r, newRows(r, 1).source(), func(o *cache.Options) { o.Filter = filter })
		stop := keeping(r, c, time.Minute, func(ctx context.Context) iter.Seq2[int64, error] {
			if first.begun.Load() == 0 {
				return first.scan(ctx)
			}
			return second.scan(ctx)
		})
		time.Sleep(90 * time.Second)
		begun := time.Now()
		if err := stop(); !errors.Is(err, context.Canceled) || time.Since(begun) > time.Second {
			r.Errorf("ended after %v: %v", time.Since(begun), err)
		}
		if last := c.Stats().FilterRebuild; second.begun.Load() != 1 || last.Err == "" || filter.Stats().Rebuilds != 1 {
			r.Errorf("%d scans, %+v, %+v", second.begun.Load(), last, filter.Stats())
		}
		time.Sleep(15 * time.Second) // the filter catches up
		c.gives(r, 1, "v1")
		if got, err := c.Fetch(r.ctx, 4); !errors.Is(err, cache.ErrNotFound) || got.Tier != cache.TierFilter {
			r.Errorf("the filter does not answer: %+v, %v", got, err)
		}
	})
}

func TestKeepFilterSaysWhatItCannotDo(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		s := &scans{}
		plain := open(r, newRows(r).source())
		if err := plain.KeepFilter(r.ctx, time.Hour, s.scan); err == nil {
			r.Error("without a filter")
		}
		_, with := filtered(r)
		c := open(r, newRows(r).source(), with)
		if err := c.KeepFilter(r.ctx, 0, s.scan); err == nil {
			r.Error("without a period")
		}
		ended := make(chan error, 1)
		go func() { ended <- c.KeepFilter(r.ctx, time.Hour, s.scan) }()
		time.Sleep(time.Minute)
		_ = c.Close()
		if err := <-ended; !errors.Is(err, cache.ErrClosed) {
			r.Errorf("the cache is closed: %v", err)
		}
		if err := c.KeepFilter(r.ctx, time.Hour, s.scan); !errors.Is(err, cache.ErrClosed) {
			r.Errorf("a closed cache: %v", err)
		}
	})
}

// keeperRole is a process that says when it is in the middle of a rebuild, and stays there.
func keeperRole(p *redistest.Parent, args []string) error {
	rdb := redis.NewClient(&redis.Options{Addr: args[0]})
	defer rdb.Close()
	filter, err := bloom.Open(context.Background(), rdb, bloom.Options{Name: "test", Capacity: 10_000, FalsePositiveRate: 1e-6, MaxTransaction: -1})
	if err != nil {
		return err
	}
	defer filter.Close()
	load := func(context.Context, int64) (string, error) { return "v", nil }
	c, err := cache.New(rdb, load, cache.Options{Name: "test", Filter: filter})
	if err != nil {
		return err
	}
	defer c.Close()
	return c.KeepFilter(context.Background(), time.Hour, func(ctx context.Context) iter.Seq2[int64, error] {
		return func(yield func(int64, error) bool) {
			yield(1, nil)
			p.Say("halfway")
			<-ctx.Done()
		}
	})
}

// A process dies in the middle of its rebuild, with kill -9: another one has waited for it
// and rebuilds, once its lease has expired.
func TestAProcessThatDiesInItsRebuildIsFollowedByAnother(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	child := redistest.Child(t, "keeper", server.Addr())
	child.Expect("halfway")
	filter := sharedFilter(r)
	s := &scans{keys: []int64{1, 2}}
	c := open(r, newRows(r, 1, 2).source(), func(o *cache.Options) { o.Filter = filter })
	stop := keeping(r, c, time.Hour, s.scan)
	r.eventually("it waits", func() bool { return filter.Stats().Rebuilding })
	if n := s.begun.Load(); n != 0 {
		t.Errorf("%d scans beside the other", n)
	}
	child.Kill()
	r.eventually("another has rebuilt", func() bool { return c.Stats().FilterRebuild.Keys == 2 && !filter.Stats().Abstaining })
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
