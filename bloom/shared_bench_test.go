package bloom_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

func benchOptions(capacity uint64) bloom.Options {
	return bloom.Options{
		Name: "bench", Capacity: capacity, MaxTransaction: -1,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// A shared filter of 10 M ids at 1 % in turn with one in process, 16 goroutines; of
// the ids asked for, all are absent, as in a flood, or half are; also while another
// process adds, as fast as Redis takes it:
//
//	go test -run '^$' -bench SharedMayContain -benchtime 300ms ./bloom
func BenchmarkSharedMayContain(b *testing.B) {
	s := redistest.Start(b)
	all := func(yield func(string, error) bool) {
		for i := 0; i < benchIDs && yield(benchID(i), nil); i++ {
		}
	}
	var filters []*bloom.Filter
	for _, shared := range []bool{true, false} {
		f, err := bloom.New(benchOptions(benchIDs))
		if shared {
			f, err = bloom.Open(context.Background(), s.Client(b), benchOptions(benchIDs))
		}
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		if err := f.Rebuild(context.Background(), all); err != nil || f.Stats().Abstaining {
			b.Fatal(err, f.Stats())
		}
		filters = append(filters, f)
	}
	ask := func(b *testing.B, f *bloom.Filter, ids []string) {
		b.ReportAllocs()
		b.SetParallelism(max(1, 16/runtime.GOMAXPROCS(0)))
		b.RunParallel(func(pb *testing.PB) {
			for i := rand.IntN(len(ids)); pb.Next(); i++ {
				f.MayContain(context.Background(), ids[i%len(ids)])
			}
		})
	}
	for what, first := range map[string]int{"absent": benchIDs, "half": 0} {
		ids := make([]string, 1<<18)
		for i := range ids {
			ids[i] = benchID(first + rand.IntN(2*benchIDs-first))
		}
		for round := range 10 {
			b.Run(fmt.Sprintf("%s/shared/%d", what, round), func(b *testing.B) { ask(b, filters[0], ids) })
			b.Run(fmt.Sprintf("%s/in process/%d", what, round), func(b *testing.B) { ask(b, filters[1], ids) })
		}
		if what == "half" {
			b.Run("half/shared, others add", func(b *testing.B) {
				defer adding(b, s, ids)()
				ask(b, filters[0], ids)
			})
		}
	}
}

// adding lets another process, so to speak, add until it is told to stop.
func adding(b *testing.B, s *redistest.Server, ids []string) (stop func()) {
	f, err := bloom.Open(context.Background(), s.Client(b), benchOptions(benchIDs))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			_ = f.Add(ctx, ids[i%len(ids)])
		}
	}()
	return func() { cancel(); <-done; _ = f.Close() }
}

// One id, or many at a time.
func BenchmarkSharedAdd(b *testing.B) {
	for _, n := range []int{1, 64, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := redistest.Start(b)
			f, err := bloom.Open(context.Background(), s.Client(b), benchOptions(1_000_000))
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			if err := f.Rebuild(context.Background(), numbered(0, 0)); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			ids, i := make([]string, n), 0
			for b.Loop() {
				for j := range ids {
					ids[j], i = benchID(i), i+1
				}
				if err := f.Add(context.Background(), ids...); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(i), "ns/id")
		})
	}
}

// A Rebuild of 10 M ids, and how long others wait meanwhile for a GET, and while another
// process loads the 12 MB:
//
//	go test -run SharedLoad -v ./bloom
func TestSharedLoadsAndRebuildsHoldOthersUpBriefly(t *testing.T) {
	redistest.Long(t)
	s := redistest.Start(t)
	open := func() *bloom.Filter {
		f, err := bloom.Open(context.Background(), s.Client(t), benchOptions(benchIDs))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	rdb := s.Client(t, func(o *redis.Options) { o.PoolSize = 1 })
	measure := func(what string, fn func()) {
		stop, done := make(chan struct{}), make(chan []time.Duration)
		go func() {
			var waits []time.Duration
			for {
				select {
				case <-stop:
					done <- waits
					return
				default:
				}
				begun := time.Now()
				rdb.Get(context.Background(), "x")
				waits = append(waits, time.Since(begun))
			}
		}()
		begun := time.Now()
		fn()
		took := time.Since(begun)
		close(stop)
		waits := <-done
		slices.Sort(waits)
		n := len(waits)
		t.Logf("%s: %v; %d GETs beside it, p50 %v, p99 %v, p99.9 %v, longest %v",
			what, took, n, waits[n/2], waits[n*99/100], waits[n*999/1000], waits[n-1])
	}
	a := open()
	measure("nothing", func() { time.Sleep(time.Second) })
	measure("rebuild", func() {
		err := a.Rebuild(context.Background(), func(yield func(string, error) bool) {
			for i := 0; i < benchIDs && yield(benchID(i), nil); i++ {
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
	for range 3 {
		measure("load", func() { answers(t, open()) })
	}
	measure("10,000 adds", func() { add(t, a, 0, 10_000) })
	if rss := s.Stat("used_memory"); rss > 0 {
		t.Logf("redis uses %d MB", rss>>20)
	}
}

// A process that starts beside a filter of 10 M ids at 1 %, 12 MB in Redis on the same machine:
//
//	go test -run '^$' -bench SharedLoad -benchtime 20x ./bloom
func BenchmarkSharedLoad(b *testing.B) {
	s := redistest.Start(b)
	first, err := bloom.Open(context.Background(), s.Client(b), benchOptions(benchIDs))
	if err != nil {
		b.Fatal(err)
	}
	defer first.Close()
	if err := first.Rebuild(context.Background(), numbered(0, 1000)); err != nil { // as large as with all
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		f, err := bloom.Open(context.Background(), s.Client(b), benchOptions(benchIDs))
		if err != nil {
			b.Fatal(err)
		}
		for f.Stats().Abstaining {
			time.Sleep(100 * time.Microsecond)
		}
		if f.Stats().Bytes < benchIDs {
			b.Fatal(f.Stats())
		}
		_ = f.Close()
	}
}
