package bench

import (
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) {
	redistest.Main(m, redistest.Roles{"contender": contenderRole})
}

// A free lock: what it costs to take it and to give it back.
func BenchmarkUncontended(b *testing.B) {
	for _, c := range contenders {
		b.Run(c.name, func(b *testing.B) {
			s := redistest.Start(b)
			l, err := c.open(s.Addr(), time.Second)
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			pairs(b, l, 100)
			before, n := c.sent(s), 0
			var took []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				took = append(took, pairs(b, l, 1)...)
				n++
			}
			b.ReportMetric(float64(c.sent(s)-before)/float64(n), "sent/op")
			b.ReportMetric(float64(at(took, 0.5).Microseconds()), "p50-µs")
			b.ReportMetric(float64(at(took, 0.99).Microseconds()), "p99-µs")
		})
	}
}

// The same in turn, so that what disturbs one disturbs all: this is the figure to compare by.
func BenchmarkUncontendedInTurn(b *testing.B) {
	s := redistest.Start(b)
	lockers := make([]locker, len(contenders))
	took := make([][]time.Duration, len(contenders))
	for i, c := range contenders {
		l, err := c.open(s.Addr(), time.Second)
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		pairs(b, l, 100)
		lockers[i] = l
	}
	for b.Loop() {
		for i, l := range lockers {
			took[i] = append(took[i], pairs(b, l, 1)...)
		}
	}
	for i, c := range contenders {
		b.ReportMetric(float64(at(took[i], 0.5).Nanoseconds())/1000, c.name+"-p50-µs")
	}
	b.ReportMetric(float64(at(took[0], 0.5))/float64(at(took[1], 0.5)), "levee/redislock")
}

// Two processes of 64 goroutines each want one lock and hold it for a millisecond.
func BenchmarkContended(b *testing.B) {
	runs := redistest.Pick(3*time.Second, 15*time.Second)
	for _, c := range contenders {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				sum, sent := contention(b, c, 64, time.Millisecond, runs)
				n := float64(total(sum.Acquired))
				b.ReportMetric(n/runs.Seconds(), "acquired/s")
				b.ReportMetric(float64(sent)/n, "sent/acquired")
				b.ReportMetric(jain(sum.Acquired), "jain")
				b.ReportMetric(sum.Worst.Seconds(), "worst-s")
			}
		})
	}
}

// Thousands wait for one lock, over ten clients, and nobody holds it for longer than he must.
func BenchmarkWaiters(b *testing.B) {
	n := redistest.Pick(2000, 10_000)
	for _, c := range contenders {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				h := waiters(b, c, n, 10, redistest.Pick(8*time.Second, 30*time.Second))
				b.ReportMetric(float64(h.acquired), "acquired")
				b.ReportMetric(float64(h.acquired)/h.took.Seconds(), "acquired/s")
				b.ReportMetric(float64(h.sent)/float64(max(1, h.acquired)), "sent/acquired")
				b.ReportMetric(float64(h.gap.Milliseconds()), "gap-ms")
				b.ReportMetric(float64(h.subscriptions)/10, "subscriptions/client")
			}
		})
	}
}

// The benchmarks run, at a size that proves nothing else.
func TestAllContendersRun(t *testing.T) {
	for _, c := range contenders {
		t.Run(c.name, func(t *testing.T) {
			sum, sent := contention(t, c, 4, time.Millisecond, 300*time.Millisecond)
			if total(sum.Acquired) == 0 || sent == 0 {
				t.Errorf("%d acquisitions with %d commands", total(sum.Acquired), sent)
			}
			h := waiters(t, c, 20, 2, 3*time.Second)
			if h.acquired == 0 || c.name == "levee" && h.acquired != 20 {
				t.Errorf("%d of 20 waiters were served", h.acquired)
			}
		})
	}
}

// What a free lock costs does not depend on the machine.
func TestAFreeLockCostsTwoScripts(t *testing.T) {
	s := redistest.Start(t)
	l, err := openLevee(s.Addr(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pairs(t, l, 1)
	before := find("levee").sent(s)
	pairs(t, l, 50)
	if sent := find("levee").sent(s) - before; sent != 100 {
		t.Errorf("%d commands for 50 pairs", sent)
	}
}
