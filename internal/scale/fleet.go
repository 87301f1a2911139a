package main

import (
	"math"
	"math/rand/v2"
)

// A Fleet is processes with one cache over one Redis and one database. Times are in
// seconds, rates a second.
type Fleet struct {
	Processes int
	Reads     float64 // Gets of each process
	Keys      int
	Zipf      float64 // reads of the key of rank r are in proportion to 1/r^Zipf
	Writes    float64 // of the whole fleet, over the keys as the reads are
	Messages  int     // and scripts, that a write takes: 2 for Write, 1 for Invalidate
	Load      float64 // how long the source takes to load a value

	// As in cache.Options, with their defaults in Defaults.
	TTL, LocalTTL, StaleWhileRevalidate, StaleIfError, Jitter, EarlyRefresh float64
	LocalKeys                                                               int // that the tier of a process has room for
}

// Defaults are the defaults of package cache: 64 MiB are 130,000 values of 200 bytes.
var Defaults = Fleet{
	Messages: 2, TTL: 600, LocalTTL: 300, StaleWhileRevalidate: 30, StaleIfError: 3600, Jitter: 0.1, EarlyRefresh: 1, LocalKeys: 130_000,
}

// What package cache and localcache have as constants.
const (
	maxStaleLife = 1.0     // a value past its TTL lives no longer in a process
	lead         = 0.0375  // by which a life in a process ends early, on average
	stripes      = 1 << 16 // of ids: an invalidation ends those of its stripe in a process
	earlyPart    = 0.1     // of the TTL, in which a value may be refreshed early
	earlyLoads   = 8       // or that many loads, if they are longer
)

// Rates are what a fleet does in a second, all processes together.
type Rates struct {
	Gets   float64
	Asks   float64 // reads of Redis; what is neither these nor Joined came from the process
	Joined float64 // Gets that waited for the load of another
	Waits  float64 // Gets that opened a flight and waited for a load
	Stale  float64 // answers past their TTL, from Redis
	Begins float64 // asks for a lease
	Loads  float64 // of the source; each that is published is one more script
	Ends   float64 // scripts of writes
	Heard  float64 // messages, each of which goes to all processes
	Had    float64 // processes that had a key when it was written, all writes together
	Told   float64 // processes that have read a key since its last change, all changes together: whom CLIENT TRACKING would tell
	Copies float64 // values in the tiers of all processes, at a time
	Stored float64 // values in Redis, at a time
}

func (r *Rates) add(other Rates, weight float64) {
	r.Gets += weight * other.Gets
	r.Asks += weight * other.Asks
	r.Joined += weight * other.Joined
	r.Waits += weight * other.Waits
	r.Stale += weight * other.Stale
	r.Begins += weight * other.Begins
	r.Loads += weight * other.Loads
	r.Ends += weight * other.Ends
	r.Heard += weight * other.Heard
	r.Had += weight * other.Had
	r.Told += weight * other.Told
	r.Copies += weight * other.Copies
	r.Stored += weight * other.Stored
}

// Local is the share of the Gets that the process answers.
func (r Rates) Local() float64 { return max(0, 1-(r.Asks+r.Joined)/r.Gets) }

// Scripts is how many scripts Redis runs: for leases, publications and writes.
func (r Rates) Scripts() float64 { return r.Begins + r.Loads + r.Ends }

// Run simulates the fleet. Keys do not meet, but in the load that all of them make, so
// each is simulated by itself: the most popular ones one by one, the others by one of
// each tenth of a decade of ranks. The same seed gives the same rates.
func (f Fleet) Run(seed uint64) Rates {
	total := 0.0
	for _, s := range f.strata() {
		total += s.weight * s.popularity
	}
	var all Rates
	for _, s := range f.strata() {
		k := key{
			fleet: f, rng: rand.New(rand.NewPCG(seed, uint64(s.rank))),
			reads: f.Reads * s.popularity / total, writes: f.Writes * s.popularity / total, local: s.rank <= f.LocalKeys,
		}
		all.add(k.run(), s.weight)
	}
	return all
}

// A stratum is some ranks, and one of them that stands for all.
type stratum struct {
	rank       int
	weight     float64 // how many
	popularity float64 // of one, on average
}

const perDecade = 10

func (f Fleet) strata() (all []stratum) {
	for first := 1; first <= f.Keys; {
		last := max(first, int(float64(first)*math.Pow(10, 1.0/perDecade)))
		if first <= f.LocalKeys {
			last = min(last, f.LocalKeys)
		}
		last = min(last, f.Keys)
		weight := float64(last - first + 1)
		all = append(all, stratum{first, weight, f.popularity(first, last) / weight})
		first = last + 1
	}
	return all
}

// popularity is that of the ranks from first to last. The integral is good to one part
// in a thousand where there are many.
func (f Fleet) popularity(first, last int) (sum float64) {
	if last-first < 100 {
		for rank := first; rank <= last; rank++ {
			sum += math.Pow(float64(rank), -f.Zipf)
		}
		return sum
	}
	from, to := float64(first)-0.5, float64(last)+0.5
	if f.Zipf == 1 {
		return math.Log(to / from)
	}
	return (math.Pow(to, 1-f.Zipf) - math.Pow(from, 1-f.Zipf)) / (1 - f.Zipf)
}
