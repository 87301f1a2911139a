package cache_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// BenchmarkWarmBesideReads warms 100,000 keys, 2,000 a second, beside 1,000 reads a
// second of other keys, which Redis has. It gives the p99 of the reads while the Warm runs,
// and of those for five seconds before and after it; a read begins when it is due.
//
//	go test -run '^$' -bench WarmBesideReads -benchtime 1x ./cache
func BenchmarkWarmBesideReads(b *testing.B) {
	const keys, rate, read = 100_000, 2_000, 1000
	server := redistest.Start(b)
	source := &batches{values: map[int64]string{}}
	for key := int64(1); key <= keys; key++ {
		source.values[key], source.values[-key] = "v1", "v1"
	}
	source.slowly(func(context.Context, []int64) error { time.Sleep(5 * time.Millisecond); return nil })
	for b.Loop() {
		o := cache.Options{Name: "warm"}
		o.Local.MaxBytes = -1
		warming, reading := redistest.Must(cache.NewFrom(server.Client(b), source.source(), o)), redistest.Must(cache.NewFrom(server.Client(b), source.source(), o))
		if _, err := reading.GetMany(b.Context(), upTo(-read, -1)); err != nil {
			b.Fatal(err)
		}
		one := func() { _, _ = reading.Get(b.Context(), -1-rand.Int64N(read)) }
		alone := openLoop(one, 5*time.Second)
		ended := make(chan error, 1)
		began := time.Now()
		go func() {
			ended <- warming.Warm(b.Context(), slices.Values(upTo(1, keys)), cache.WarmOptions{Rate: rate})
		}()
		beside := openLoop(one, keys/rate*time.Second)
		if err := <-ended; err != nil {
			b.Error(err)
		}
		took := time.Since(began)
		alone = append(alone, openLoop(one, 5*time.Second)...)
		b.ReportMetric(took.Seconds(), "s-of-warm")
		b.ReportMetric(p99(alone).Seconds()*1000, "ms-p99-alone")
		b.ReportMetric(p99(beside).Seconds()*1000, "ms-p99-beside")
		_, _ = warming.Close(), reading.Close()
		server.Client(b).FlushAll(b.Context())
	}
}

// openLoop does read 1,000 times a second, whether or not the last one has ended.
func openLoop(read func(), length time.Duration) (times []time.Duration) {
	var mu sync.Mutex // guards times
	var all sync.WaitGroup
	for due, end := time.Now(), time.Now().Add(length); due.Before(end); due = due.Add(time.Millisecond) {
		time.Sleep(time.Until(due))
		all.Go(func() {
			read()
			took := time.Since(due)
			mu.Lock()
			defer mu.Unlock()
			times = append(times, took)
		})
	}
	all.Wait()
	return times
}

func p99(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)*99/100]
}
