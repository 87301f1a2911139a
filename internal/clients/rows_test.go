package clients

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A FailoverClusterClient leaves its connection to the sentinels open when it is closed.
func TestMain(m *testing.M) {
	const listening = "github.com/redis/go-redis/v9.(*sentinelFailover).listen"
	const channel = "github.com/redis/go-redis/v9.(*channel)."
	redistest.Main(m, nil, goleak.IgnoreAnyFunction(listening),
		goleak.IgnoreAnyFunction(channel+"initHealthCheck.func1"), goleak.IgnoreAnyFunction(channel+"initMsgChan.func1"))
}

// A row is a kind of client in the table of docs/reference/clients.md.
type row struct {
	name string // as the table has it
	open func(t *testing.T) redis.UniversalClient
}

// A source is a database of one table.
type source struct {
	value atomic.Int64 // that every key has
	loads atomic.Int64
}

func (s *source) load(context.Context, int64) (int64, error) {
	s.loads.Add(1)
	return s.value.Load(), nil
}

var quiet = slog.New(slog.DiscardHandler)

// until repeats what a client may fail at, until it succeeds.
func until(t *testing.T, what string, do func() error) {
	t.Helper()
	redistest.Eventually(t, 20*time.Second, what, func() bool { return do() == nil })
}

// cacheKeepsItsPromise has two processes read and invalidate: after Invalidate has
// returned nil, neither gets what was there before.
func cacheKeepsItsPromise(t *testing.T, open func(*testing.T) redis.UniversalClient) {
	var db source
	options := cache.Options{Name: strings.ReplaceAll(t.Name(), ":", ""), RedisTimeout: time.Second, Logger: quiet}
	options.Local.MaxBytes = -1
	var caches []*cache.Cache[int64, int64]
	for range 2 {
		c, err := cache.New(open(t), db.load, options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		caches = append(caches, c)
	}
	for round := range int64(50) {
		key := round % 5
		db.value.Store(round)
		until(t, "an invalidation", func() error { return caches[round%2].Invalidate(t.Context(), key) })
		for i, c := range caches {
			var got int64
			err := errHook
			for errors.Is(err, errHook) {
				got, err = c.Get(t.Context(), key)
			}
			if err != nil || got != round {
				t.Fatalf("round %d: process %d has %d, %v", round, i, got, err)
			}
		}
	}
	if s := caches[1].Stats(); s.Redis == 0 {
		t.Errorf("the second process found nothing in Redis: %+v", s)
	}
}

// lockExcludes has two processes take one lock.
func lockExcludes(t *testing.T, open func(*testing.T) redis.UniversalClient) {
	var inside, done atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	errs := make(chan error, 2)
	for range 2 {
		l, err := lock.New(open(t), lock.Options{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			var err error
			for range 10 {
				err = errors.Join(err, holdOnce(ctx, l, t.Name(), func() {
					if inside.Add(1) > 1 {
						t.Error("two hold one lock")
					}
					done.Add(1)
					inside.Add(-1)
				}))
			}
			errs <- err
		}()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if done.Load() < 20 {
		t.Errorf("%d of 20", done.Load())
	}
}

// holdOnce runs fn under a lock that a client may fail to take.
func holdOnce(ctx context.Context, l *lock.Locker, name string, fn func()) error {
	for {
		err := l.Do(ctx, name, func(context.Context, *lock.Lease) error { fn(); return nil })
		if !errors.Is(err, lock.ErrUnavailable) {
			return err
		}
	}
}

// filterKnows has one process add what the other asks for.
func filterKnows(t *testing.T, open func(*testing.T) redis.UniversalClient) {
	o := bloom.Options{Name: t.Name(), Capacity: 1000, FalsePositiveRate: 1e-6, MaxTransaction: -1, Logger: quiet}
	var filters []*bloom.Filter
	for range 2 {
		f, err := bloom.Open(t.Context(), open(t), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		filters = append(filters, f)
	}
	// Complete is honoured only if Redis answers Open, which a hook that fails may prevent.
	// A Rebuild that fails, and whose lease the hook keeps from being given back, is waited for by the next until that ends.
	redistest.Eventually(t, 2*time.Minute, "a rebuild", func() bool { return filters[0].Rebuild(t.Context(), func(func(string, error) bool) {}) == nil })
	until(t, "an add", func() error { return filters[0].Add(t.Context(), "here") })
	for i, f := range filters {
		redistest.Eventually(t, 20*time.Second, fmt.Sprint("process ", i, " knows"), func() bool {
			return !f.Stats().Abstaining && f.MayContain(t.Context(), "here") && !f.MayContain(t.Context(), "absent")
		})
	}
}

func works(t *testing.T, rows []row) {
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Run("cache", func(t *testing.T) { cacheKeepsItsPromise(t, r.open) })
			t.Run("lock", func(t *testing.T) { lockExcludes(t, r.open) })
			t.Run("filter", func(t *testing.T) { filterKnows(t, r.open) })
		})
	}
}
