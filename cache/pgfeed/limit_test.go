package pgfeed

import (
	"context"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/levee-go/levee/breaker"
)

// A crowd is processes that load from one PostgreSQL, each with a breaker of its own and as many callers
// as come. A connection stays open, for the next load of its process.
type crowd struct {
	url      string
	breakers []*breaker.Breaker
	idle     []chan *pgx.Conn

	refused atomic.Int64 // loads that got no connection
	mu      sync.Mutex
	took    []time.Duration // of loads that succeeded, guarded by mu
}

func newCrowd(t *testing.T, url string, processes int, o breaker.Options) *crowd {
	c := &crowd{url: url}
	for range processes {
		b, err := breaker.New(o)
		if err != nil {
			t.Fatal(err)
		}
		c.breakers, c.idle = append(c.breakers, b), append(c.idle, make(chan *pgx.Conn, 256))
	}
	return c
}

// load is a query that a processor is busy with.
func (c *crowd) load(ctx context.Context, process int) error {
	var conn *pgx.Conn
	select {
	case conn = <-c.idle[process]:
	default:
		var err error
		if conn, err = pgx.Connect(ctx, c.url); err != nil {
			c.refused.Add(1)
			return err
		}
	}
	defer func() {
		if !conn.IsClosed() {
			c.idle[process] <- conn
		}
	}()
	began, sum := time.Now(), 0
	if err := conn.QueryRow(ctx, "SELECT sum(i) FROM generate_series(1, 10000) i").Scan(&sum); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took = append(c.took, time.Since(began))
	return nil
}

// loadFor has callers of each process load for so long, and returns loads a second and their p99
// in the second half.
func (c *crowd) loadFor(callers int, d time.Duration) (rate float64, p99 time.Duration) {
	ctx, stop := context.WithTimeout(context.Background(), d)
	defer stop()
	var running sync.WaitGroup
	for i, b := range c.breakers {
		for range callers {
			running.Go(func() {
				for ctx.Err() == nil {
					if err := b.Do(context.Background(), func(ctx context.Context) error { return c.load(ctx, i) }); err != nil {
						time.Sleep(10 * time.Millisecond)
					}
				}
			})
		}
	}
	time.Sleep(d / 2)
	c.mu.Lock()
	c.took = c.took[:0]
	c.mu.Unlock()
	running.Wait()
	for _, idle := range c.idle {
		for len(idle) > 0 {
			_ = (<-idle).Close(context.Background())
		}
	}
	slices.Sort(c.took)
	return float64(len(c.took)) / (d / 2).Seconds(), c.took[len(c.took)*99/100]
}

// A PostgreSQL with 100 connections keeps three of them for superusers. Catches a limit that is exceeded, and with the
// 64 of the default shows what docs/scale.md warns of. LEVEE_LONG=1 measures.
func TestNoConnectionIsRefusedWithinMaxConcurrent(t *testing.T) {
	r := newRig(t)
	r.exec("DO $$ BEGIN CREATE ROLE loader LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
	r.session.hangUp() // the crowd needs all connections of the server
	admins.hangUp()
	for _, test := range []struct{ processes, most int }{{1, 96}, {4, 24}} {
		took := time.Second
		if os.Getenv("LEVEE_LONG") != "" {
			took = 30 * time.Second
			for _, fixed := range []int{2, 4, 8, 16, test.most} {
				c := newCrowd(t, r.url("loader"), test.processes, breaker.Options{MaxConcurrent: max(1, fixed/test.processes)})
				rate, p99 := c.loadFor(100, took/6)
				t.Logf("%d processes, at most %d in each: %.0f loads/s, p99 %v, refused %d", test.processes, max(1, fixed/test.processes), rate, p99, c.refused.Load())
			}
		}
		c := newCrowd(t, r.url("loader"), test.processes, breaker.Options{MinConcurrent: 1, MaxConcurrent: test.most})
		rate, p99 := c.loadFor(100, took)
		limits := make([]int, test.processes)
		for i, b := range c.breakers {
			limits[i] = b.Stats().Limit
		}
		t.Logf("%d processes, between 1 and %d: %v: %.0f loads/s, p99 %v, refused %d", test.processes, test.most, limits, rate, p99, c.refused.Load())
		if n := c.refused.Load(); n > 0 {
			t.Errorf("%d processes: %d loads had no connection", test.processes, n)
		}
	}
}
