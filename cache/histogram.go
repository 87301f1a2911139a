package cache

import (
	"fmt"
	"sync/atomic"
	"time"
)

// buckets is how many bounds a Histogram has.
const buckets = 17

// A Histogram counts durations by their size. It may be compared and copied.
type Histogram struct {
	// Buckets are in the order of their bounds, which are always the same.
	Buckets [buckets]Bucket
	Over    uint64        // longer than the last bound
	Sum     time.Duration // of all
}

// A Bucket counts the durations up to its bound, and over the bound before.
type Bucket struct {
	Bound time.Duration // the longest that it counts
	Count uint64        // of this bucket alone, not of those below
}

// Count is how many durations there are.
func (h Histogram) Count() uint64 {
	n := h.Over
	for _, b := range h.Buckets {
		n += b.Count
	}
	return n
}

// String says how many there are and how long they are on average.
func (h Histogram) String() string {
	n := h.Count()
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("%d of %v on average", n, h.Sum/time.Duration(n))
}

// bounds are those of a kind of histogram.
type bounds [buckets]time.Duration

var (
	latencies = bounds{
		50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
		time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
		50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
	}
	ages = bounds{
		time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 20 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 12 * time.Hour, 24 * time.Hour,
	}
)

// times are the durations that a cache notes, none of them of a local hit: to ask the
// clock takes longer than that.
type times struct {
	load, flightWait, leaseWait, read, write tally // in latencies
	stale, audit                             tally // in ages
}

// A tally is a Histogram that is being counted.
type tally struct {
	counts [buckets + 1]atomic.Uint64 // the last is Over
	sum    atomic.Int64
}

func (t *tally) add(b *bounds, d time.Duration) {
	i := 0
	for i < len(b) && d > b[i] { // from below: what happens often is short
		i++
	}
	t.counts[i].Add(1)
	t.sum.Add(int64(d))
}

func (t *tally) histogram(b *bounds) (h Histogram) {
	for i, bound := range b {
		h.Buckets[i] = Bucket{bound, t.counts[i].Load()}
	}
	h.Over, h.Sum = t.counts[buckets].Load(), time.Duration(t.sum.Load())
	return h
}
