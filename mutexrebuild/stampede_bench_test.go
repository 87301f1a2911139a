package mutexrebuild_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

const (
	stampedeProcesses = 4
	stampedeCallers   = 256 // in each process
	stampedeLoad      = 50 * time.Millisecond
)

// BenchmarkStampede has four processes with 256 callers each ask for a cold key
// whose load takes 50 ms. It tells the loads, what callers waited over the load, and
// the round trips to Redis of all processes together, for each key.
//
//	go test -run '^$' -bench Stampede -benchtime 50x ./mutexrebuild
func BenchmarkStampede(b *testing.B) {
	s := redistest.Start(b)
	var children []*redistest.ChildProcess
	for range stampedeProcesses {
		children = append(children, redistest.Child(b, "stampede", s.Addr()))
	}
	for _, c := range children {
		c.Expect("ready")
	}
	loads, trips := 0, 0
	var over []time.Duration
	ask := func(id string) {
		for _, c := range children {
			c.Send("%s", id)
		}
		for _, c := range children {
			var l, n int
			said := c.Expect("done ")
			fields := strings.Fields(said)
			if _, err := fmt.Sscan(fields[0]+" "+fields[1], &l, &n); err != nil {
				b.Fatal(err)
			}
			loads, trips = loads+l, trips+n
			for _, field := range fields[2:] {
				var took time.Duration
				if _, err := fmt.Sscan(field, (*int64)(&took)); err != nil {
					b.Fatal(err)
				}
				over = append(over, took-stampedeLoad)
			}
		}
	}
	ask("warm") // connections are dialled, the scripts known
	loads, trips, over = 0, 0, nil
	for i := range b.N {
		ask(fmt.Sprint(i))
	}
	for _, c := range children {
		c.Send("stop")
		if err := c.Wait(); err != nil {
			b.Error(err)
		}
	}
	slices.Sort(over)
	ms := func(share float64) float64 {
		return float64(over[int(share*float64(len(over)-1))]) / float64(time.Millisecond)
	}
	b.ReportMetric(float64(loads)/float64(b.N), "loads/key")
	b.ReportMetric(float64(trips)/float64(b.N), "roundtrips/key")
	b.ReportMetric(ms(0.5), "p50-ms-over-load")
	b.ReportMetric(ms(0.99), "p99-ms-over-load")
	b.ReportMetric(0, "ns/op")
}

// stampede is one of the processes: it says its loads, its round trips, and how
// long each of its callers took.
func stampede(p *redistest.Parent, args []string) error {
	var m meter
	rdb := redis.NewClient(&redis.Options{Addr: args[0], DisableIdentity: true, Dialer: m.over((&net.Dialer{}).DialContext)})
	defer rdb.Close()
	g, err := newGroup(rdb, opts{})
	if err != nil {
		return err
	}
	defer g.Close()
	for !g.Live() {
		time.Sleep(time.Millisecond)
	}
	p.Say("ready")
	for id := p.Next(); id != "stop"; id = p.Next() {
		var loads atomic.Int64
		m.take()
		took := make([]time.Duration, stampedeCallers)
		var ready, all sync.WaitGroup
		begin := make(chan struct{})
		ready.Add(stampedeCallers)
		for i := range took {
			all.Go(func() {
				ready.Done()
				<-begin
				began := time.Now()
				got, err := rebuild(context.Background(), g, id, func(context.Context) (string, error) {
					loads.Add(1)
					time.Sleep(stampedeLoad)
					return "v", nil
				})
				took[i] = time.Since(began)
				if err != nil || got != "v" {
					p.Say("wrong: %q, %v", got, err)
				}
			})
		}
		ready.Wait()
		close(begin)
		all.Wait()
		line := fmt.Sprintf("done %d %d", loads.Load(), len(strings.Fields(m.take())))
		for _, t := range took {
			line += fmt.Sprintf(" %d", t)
		}
		p.Say("%s", line)
	}
	return nil
}

// BenchmarkHit is a value that Redis has, beside the bare GET of the same bytes.
//
//	go test -run '^$' -bench Hit -count 10 ./mutexrebuild
func BenchmarkHit(b *testing.B) {
	s := redistest.Start(b)
	rdb := s.Client(b)
	g, err := newGroup(rdb, opts{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(g.Close)
	ctx := context.Background()
	if err := set(ctx, g, "x", strings.Repeat("v", 1000)); err != nil {
		b.Fatal(err)
	}
	b.Run("GET", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := rdb.Get(ctx, valueKey("x")).Err(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Rebuild", func(b *testing.B) {
		b.ReportAllocs()
		load := gives("?")
		for b.Loop() {
			if _, err := rebuild(ctx, g, "x", load); err != nil {
				b.Fatal(err)
			}
		}
	})
}
