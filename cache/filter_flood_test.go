package cache_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

const (
	floodRows = 100_000
	floodRate = 0.01 // of absent keys that the filter may let pass
)

// flooded is a cache with a shared filter that knows all rows, from 0 on.
func flooded(t testing.TB, s *redistest.Server) (c *cache.Cache[int64, string], loads *atomic.Int64) {
	t.Helper()
	filter, err := bloom.Open(context.Background(), s.Client(t), bloom.Options{
		Name: "flood", Capacity: floodRows, FalsePositiveRate: floodRate, MaxTransaction: -1,
		MaxLag: 10 * time.Second, // so that a busy machine is not taken for a silent Redis
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = filter.Close() })
	err = filter.Rebuild(context.Background(), func(yield func(string, error) bool) {
		for id := int64(0); id < floodRows && yield(strconv.FormatInt(id, 10), nil); id++ {
		}
	})
	if err != nil || filter.Stats().Abstaining {
		t.Fatal(err, filter.Stats())
	}
	loads = new(atomic.Int64)
	c, err = cache.New(s.Client(t), func(_ context.Context, id int64) (string, error) {
		loads.Add(1)
		if id >= floodRows {
			return "", cache.ErrNotFound
		}
		return "row", nil
	}, cache.Options{Name: "flood", Filter: filter})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, loads
}

// A scraper asks for random keys, each once. Without the filter each of them is a load;
// without the second-miss rule each that passes leaves a null in Redis; without a bound
// on what is remembered of them the heap grows by all of them.
func TestAFloodOfRandomKeysReachesNeitherTheSourceNorRedis(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	c, loads := flooded(t, server)
	for id := range int64(1000) { // what is made at the first use is not growth
		_, _ = c.Get(t.Context(), id)
		_, _ = c.Get(t.Context(), floodRows+id)
	}
	keys, memory := rdb.DBSize(t.Context()).Val(), server.Stat("used_memory")
	heap, begun := heapInUse(), loads.Load()

	n := redistest.Pick(50_000, 10_000_000)
	const scrapers = 16
	var flood sync.WaitGroup
	for range scrapers {
		flood.Go(func() {
			for i := range n / scrapers {
				id := floodRows + rand.Int64N(1<<62)
				if _, err := c.Get(t.Context(), id); !errors.Is(err, cache.ErrNotFound) {
					t.Errorf("absent %d: %v", id, err)
					return
				}
				if i%100 != 0 {
					continue
				}
				id = rand.Int64N(1000) // an honest user
				if row, err := c.Get(t.Context(), id); err != nil || row != "row" {
					t.Errorf("%d exists: %q, %v", id, row, err)
					return
				}
			}
		})
	}
	flood.Wait()
	caused := loads.Load() - begun
	moreKeys, more := rdb.DBSize(t.Context()).Val()-keys, server.Stat("used_memory")-memory
	grown := heapInUse() - heap
	t.Logf("%d random keys: %d loads, %d more keys and %d more bytes in Redis, heap grown by %d bytes", n, caused, moreKeys, more, grown)
	if most := int64(1.2 * floodRate * float64(n)); caused > most {
		t.Errorf("%d loads, want at most %d", caused, most)
	}
	// Of what passes the filter a few are taken for known by chance; nulls that Redis
	// holds end after NullTTL.
	if most := caused/50 + 20; moreKeys > most {
		t.Errorf("%d more keys in Redis, want at most %d", moreKeys, most)
	}
	if more > 4<<20 {
		t.Errorf("%d more bytes in Redis", more)
	}
	if grown > 16<<20 { // the local nulls may take 4 MiB
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	if s := c.Stats(); s.Filter < uint64(n)*95/100 {
		t.Errorf("the filter refused %d of %d", s.Filter, n)
	}
	everyKeyEnds(t, rdb)
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A flood answered by this process's copy of the shared filter, in keys a second and
// core:
//
//	go test -run '^$' -bench FilterFlood -benchtime 2s -cpu 1,2 ./cache
func BenchmarkFilterFlood(b *testing.B) {
	c, _ := flooded(b, redistest.Start(b))
	var absent []int64 // those that pass are another matter
	for id := int64(floodRows); len(absent) < 1<<18; id++ {
		before := c.Stats().Filter
		if _, _ = c.Get(context.Background(), id); c.Stats().Filter > before {
			absent = append(absent, id)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := rand.IntN(len(absent)); pb.Next(); i++ {
			_, _ = c.Get(context.Background(), absent[i%len(absent)])
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/float64(runtime.GOMAXPROCS(0)), "keys/s/core")
}
