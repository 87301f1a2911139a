package main

import (
	"container/heap"
	"math"
	"math/rand/v2"
)

// A key is one key of a fleet. Its processes are alike, so it is enough to know how many
// of them have a copy, wait for a load, or would ask Redis. Readers and writers come at
// random (Poisson); copies, values and loads end at their times. One event follows the
// other (Gillespie's method); hits in a process are none, they are counted by their rate.
type key struct {
	fleet         Fleet
	rng           *rand.Rand
	reads, writes float64 // of each process; of the whole fleet
	local         bool    // the tiers of the processes have room for it

	now     float64
	without int     // processes that would ask Redis
	copies  ends    // when those of the processes that have one end
	waiting int     // processes that wait for the load, the one that loads among them
	stored  bool    // there is a value in Redis
	expires float64 // its TTL

	loading    bool
	loaded     float64 // when the load ends
	refreshing bool    // it is in the background: the process that loads has a copy meanwhile
	contended  bool    // another process has asked for the lease

	asked  float64 // how often Redis has been asked since the value changed
	counts Rates   // so far; Copies and Stored are integrals over time
}

// run returns the rates, from a fleet in its usual state: over a TTL, but for as many
// reads as a good figure takes and for no more than that.
func (k *key) run() Rates {
	const enough, most = 1000, 300_000
	f, n := k.fleet, float64(k.fleet.Processes)
	k.stored, k.expires = true, k.rng.Float64()*f.TTL // values and copies of all ages
	for range f.Processes {
		if life := f.LocalTTL; k.local && k.rng.Float64() < life/(life+1/k.reads) {
			heap.Push(&k.copies, k.rng.Float64()*life)
		} else {
			k.without++
		}
	}
	k.until(2*f.LocalTTL, most/2)
	began := k.now
	k.counts = Rates{}
	k.until(began+max(f.TTL, enough/(n*k.reads+k.writes)), most)
	rates := Rates{}
	rates.add(k.counts, 1/(k.now-began))
	rates.Gets, rates.Ends = n*k.reads, k.writes*float64(f.Messages) // less noise than in the counts
	return rates
}

// until lets time pass, or so many reads of Redis.
func (k *key) until(end, reads float64) {
	for reads += k.counts.Asks; k.now < end && k.counts.Asks < reads; {
		asks := float64(k.without) * k.reads
		next := k.now + k.rng.ExpFloat64()/(asks+k.writes)
		switch {
		case k.loading && k.loaded <= min(next, k.copies.first()):
			k.pass(k.loaded)
			k.publish()
		case k.copies.first() <= next:
			k.pass(k.copies.first())
			heap.Pop(&k.copies)
			k.without++
		default:
			k.pass(next)
			if k.rng.Float64()*(asks+k.writes) < asks {
				k.ask()
			} else {
				k.write()
			}
		}
	}
}

// pass moves the time on. Whoever comes to a process that waits joins its flight.
func (k *key) pass(to float64) {
	passed := to - k.now
	k.now = to
	k.counts.Joined += passed * float64(k.waiting) * k.reads
	k.counts.Copies += passed * float64(len(k.copies))
	if k.stored && to < k.expires+k.fleet.StaleIfError {
		k.counts.Stored += passed
	}
}

// ask is a Get in a process without a copy.
func (k *key) ask() {
	k.counts.Asks++
	k.asked++
	left := k.expires - k.now
	switch {
	case k.stored && left > 0:
		if k.early(left) && k.refresh() {
			return
		}
		k.keep(left)
	case k.stored && left > -k.fleet.StaleWhileRevalidate:
		k.counts.Stale++
		if k.refresh() {
			return
		}
		k.keep(min(maxStaleLife, left+k.fleet.StaleWhileRevalidate))
	default:
		k.counts.Begins++
		k.counts.Waits++
		if !k.begin(false) {
			k.counts.Begins += looks(k.loaded - k.now)
		}
		k.without--
		k.waiting++
	}
}

// early says whether this reader is the one to refresh a value that has not ended yet.
func (k *key) early(left float64) bool {
	f := k.fleet
	last := min(max(earlyPart*f.TTL, earlyLoads*f.Load), f.TTL/2)
	return left <= last && left <= f.EarlyRefresh*f.Load*k.rng.ExpFloat64()
}

// refresh asks for the lease in the background, and reports whether this process has
// got it. Then the process has what it has read until the load ends.
func (k *key) refresh() bool {
	if k.loading && k.rng.IntN(k.fleet.Processes) == 0 {
		return false // it is the one that loads
	}
	k.counts.Begins++
	if !k.begin(true) {
		return false
	}
	if k.local {
		k.without--
	}
	return true
}

// begin begins a load, unless there is one.
func (k *key) begin(background bool) bool {
	if k.loading {
		k.contended = true
		return false
	}
	k.loading, k.refreshing, k.contended = true, background, false
	k.loaded = k.now + k.fleet.Load
	return true
}

// looks is how often who waits for another's load asks for the lease meanwhile, in case
// that a message is lost: after 50 ms, 100 more, 200 more, and each quarter of a second.
func looks(wait float64) (n float64) {
	for pause := 0.05; wait > pause; pause = min(2*pause, 0.25) {
		wait -= pause
		n++
	}
	return n
}

// keep gives a process a copy for as long as a life there is, or what is left if that is
// less. An invalidation of another id of its stripe may end it before.
func (k *key) keep(left float64) {
	if !k.local {
		return
	}
	life := min(left, k.fleet.LocalTTL)*(1-k.fleet.Jitter*k.rng.Float64()) - lead
	if k.fleet.Writes > 0 {
		life = min(life, k.rng.ExpFloat64()*stripes/k.fleet.Writes)
	}
	if life > 0 {
		heap.Push(&k.copies, k.now+life)
		k.without--
	}
}

// publish ends a load.
func (k *key) publish() {
	k.counts.Loads++
	if k.contended { // those who wait are woken, and ask again
		k.counts.Heard++
		k.counts.Begins += float64(max(k.waiting-1, 0))
	}
	k.changed()
	k.stored, k.loading = true, false
	k.expires = k.now + k.fleet.TTL*(1-k.fleet.Jitter*k.rng.Float64())
	k.settle()
}

// changed counts those that have read the value, each once.
func (k *key) changed() {
	n := float64(k.fleet.Processes)
	k.counts.Told += n * (1 - math.Exp(-k.asked/n))
	k.asked = 0
}

// settle gives copies to those that have waited.
func (k *key) settle() {
	n := k.waiting
	if k.refreshing && k.local {
		n++
	}
	k.waiting = 0
	for range n {
		k.without++
		k.keep(k.expires - k.now)
	}
}

// write is one of any process. A load that it overtakes was in vain: who waits loads
// again, a refresh ends.
func (k *key) write() {
	k.counts.Heard += float64(k.fleet.Messages)
	k.counts.Had += float64(len(k.copies))
	k.changed()
	k.without += len(k.copies)
	k.copies = k.copies[:0]
	k.stored = false
	if !k.loading {
		return
	}
	k.counts.Loads++
	if k.refreshing {
		k.loading = false
		if k.local {
			k.without++
		}
		return
	}
	k.counts.Begins += float64(k.waiting)
	k.loaded = k.now + k.fleet.Load
}

// ends are times, the first on top.
type ends []float64

func (e ends) first() float64 {
	if len(e) == 0 {
		return math.Inf(1)
	}
	return e[0]
}
func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i] < e[j] }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(float64)) }
func (e *ends) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}
