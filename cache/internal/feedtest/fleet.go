package feedtest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// A Database describes a database to the tests of whole processes: a table of rows with an id and
// a name.
type Database struct {
	Table string // name that the feed uses
	// Feed makes the feed of a process.
	Feed func() feed.Feed
	// Reader makes the loader of a process.
	Reader func() cache.Loader[int64, string]
	// Write sets the name of a row, by SQL that knows no cache.
	Write func(id int64, name string) error
}

// process makes a cache as another process would, on a client of its own.
func (d Database) process(t testing.TB, redis *redistest.Server) *cache.Cache[int64, string] {
	t.Helper()
	c, err := cache.New(redis.Client(t), d.Reader(), cache.Options{Name: "product", RedisTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// EveryProcessServes writes rows that three processes have in their memory; the one that follows
// the feed goes away half way. Without Follow each process would serve its old rows for half a
// minute. The log says how long after each commit the last process had the row.
func EveryProcessServes(t *testing.T, d Database) {
	const rows = 5
	writes := redistest.Pick(100, 2000)
	redis := redistest.Start(t)
	var readers []*cache.Cache[int64, string]
	var followers sync.WaitGroup
	var ends []context.CancelFunc
	defer followers.Wait()
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	for range 3 {
		c, f := d.process(t, redis), d.Feed()
		ctx, cancel := context.WithCancel(t.Context())
		readers, ends = append(readers, c), append(ends, cancel)
		followers.Go(func() { _ = cache.Follow(ctx, f, c.Route(d.Table, nil)) })
	}
	following := func() int {
		return slices.IndexFunc(readers, func(c *cache.Cache[int64, string]) bool { return c.Stats().Follow.Following })
	}
	redistest.Eventually(t, 30*time.Second, "one follows", func() bool { return following() >= 0 })
	var took []time.Duration
	var change time.Duration
	for i := range writes {
		id, name := int64(i%rows)+1, fmt.Sprint(i+1)
		for _, c := range readers { // each has the old row in its memory
			if _, err := c.Get(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		if i == writes/2 {
			var leader int
			redistest.Eventually(t, 30*time.Second, "one follows", func() bool { leader = following(); return leader >= 0 })
			ends[leader]()
		}
		if err := d.Write(id, name); err != nil {
			t.Fatal(err)
		}
		committed := time.Now()
		for n, c := range readers {
			for end := committed.Add(20 * time.Second); ; time.Sleep(50 * time.Microsecond) {
				got, err := c.Get(t.Context(), id)
				if err == nil && got == name {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("reader %d has %q, %v of write %d", n, got, err, i)
				}
			}
		}
		if last := time.Since(committed); i == writes/2 {
			change = last
		} else {
			took = append(took, last)
		}
	}
	slices.Sort(took)
	t.Logf("%d commits until the last of three processes serves them: p50 %v, p99 %v, longest %v; with a change of followers %v",
		len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1], change)
}

// CommitToNext reports how long after a commit has returned the follower has the change, with one
// writer that waits for it each time. The change may arrive before the commit returns.
func CommitToNext(b *testing.B, w *Follower, write func() error) {
	b.Helper()
	w.Changes(0)
	var took []time.Duration
	for b.Loop() {
		told := make(chan time.Time, 1)
		go func() {
			w.Changes(1)
			told <- time.Now()
		}()
		if err := write(); err != nil {
			b.Fatal(err)
		}
		committed := time.Now()
		took = append(took, max(0, (<-told).Sub(committed)))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// CommitRates reports how many commits a second two writers make, without a feed and with one
// that is followed, in turns of a second: b.N turns of each.
func CommitRates(b *testing.B, f feed.Feed, writer func() (write func(i int) error)) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	turn := func() float64 {
		var writers sync.WaitGroup
		began, end := time.Now(), time.Now().Add(time.Second)
		counts := make([]int, 2)
		for w := range counts {
			write := writer()
			writers.Go(func() {
				for i := 0; time.Now().Before(end); i++ {
					if err := write(2*(i%500) + w + 1); err != nil {
						b.Error(err)
						return
					}
					counts[w]++
				}
			})
		}
		writers.Wait()
		return float64(counts[0]+counts[1]) / time.Since(began).Seconds()
	}
	turn() // warm
	var without, followed []float64
	at := feed.Position{}
	for range b.N {
		without = append(without, turn())
		s, err := f.Open(ctx, at)
		if err != nil {
			b.Fatal(err)
		}
		reading, stop := context.WithCancel(ctx)
		var follower sync.WaitGroup
		follower.Go(func() {
			for {
				batch, err := s.Next(reading)
				if err != nil {
					return
				}
				if batch.Position != (feed.Position{}) {
					_ = s.Confirm(reading, batch.Position)
				}
			}
		})
		followed = append(followed, turn())
		stop()
		follower.Wait()
		_ = s.Close()
	}
	slices.Sort(without)
	slices.Sort(followed)
	b.ReportMetric(without[len(without)/2], "commits/s-without")
	b.ReportMetric(followed[len(followed)/2], "commits/s-followed")
	b.ReportMetric(0, "ns/op")
}
