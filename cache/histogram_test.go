package cache

import (
	"testing"
	"time"
)

func TestAHistogramCountsEachDurationOnce(t *testing.T) {
	for _, b := range []*bounds{&latencies, &ages} {
		var n tally
		if h := n.histogram(b); h.Count() != 0 || h.String() != "none" {
			t.Errorf("an empty one is %v", h)
		}
		var sum time.Duration
		for i, bound := range b {
			if i > 0 && bound <= b[i-1] {
				t.Fatalf("the bound %v comes after %v", bound, b[i-1])
			}
			n.add(b, bound)   // in its bucket
			n.add(b, bound+1) // in the next
			sum += bound + bound + 1
		}
		n.add(b, 0)
		h := n.histogram(b)
		for i, bound := range h.Bounds {
			if bound != b[i] || h.Counts[i] != 2 {
				t.Errorf("%d up to %v, want 2 up to %v", h.Counts[i], bound, b[i])
			}
		}
		if len(h.Bounds) != buckets || h.Counts[buckets] != 1 || h.Count() != 2*buckets+1 || h.Sum != sum {
			t.Errorf("%d bounds, %d over, %d in all, sum %v, want %v", len(h.Bounds), h.Counts[buckets], h.Count(), h.Sum, sum)
		}
	}
}

// BenchmarkNote is what the histograms add to a hit in Redis: one look at the clock more,
// and a count.
func BenchmarkNote(b *testing.B) {
	var n tally
	for b.Loop() {
		began := time.Now()
		n.add(&latencies, time.Since(began)+60*time.Microsecond)
	}
}
