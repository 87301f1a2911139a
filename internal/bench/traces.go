package main

import (
	"math"
	"math/rand/v2"
	"sort"
)

// A trace is a sequence of ids that a process asks for, made by a generator with a fixed seed: the same
// for all contenders.
type trace struct {
	name string
	// start returns a function that returns the next id, and false for a request whose hit does not
	// count. entries is about how many entries the leanest contender has room for.
	start func(entries int) func() (id int, counts bool)
}

var traces = []trace{
	{"Zipf", startZipf},
	{"scan", startScan},
	{"shift", startShift},
	{"flood", startFlood},
	{"loop", startLoop},
	{"OLTP-like", startOLTP},
}

func seeded() *rand.Rand { return rand.New(rand.NewPCG(40, 6)) }

// beyond is above the ids of all tables: what is asked for once.
const beyond = 100_000_000

// byZipf returns ids below n, each with a probability of about 1/rank^s. Popular ids are spread over the whole range.
func byZipf(r *rand.Rand, n int, s float64) func() int {
	below := make([]float64, n)
	sum := 0.0
	for i := range below {
		sum += math.Pow(float64(i+1), -s)
		below[i] = sum
	}
	const step = 611_953 // a prime, so that ranks and ids are one to one
	return func() int { return sort.SearchFloat64s(below, r.Float64()*sum) * step % n }
}

// startZipf asks for a million ids by Zipf 1.0.
func startZipf(int) func() (int, bool) {
	next := byZipf(seeded(), 1_000_000, 1)
	return func() (int, bool) { return next(), true }
}

// startScan is Zipf with a scan of twice as many new ids as there is room for, every 250,000 requests.
// Only the hits of the Zipf requests count.
func startScan(entries int) func() (int, bool) {
	next := byZipf(seeded(), 1_000_000, 1)
	n, scanned := 0, 0
	return func() (int, bool) {
		n++
		if n%(250_000+2*entries) >= 250_000 {
			scanned++
			return beyond + scanned, false
		}
		return next(), true
	}
}

// startShift asks for 100,000 ids; four of five requests are for 5,000 of them, which change every 100,000 requests.
func startShift(int) func() (int, bool) {
	r := seeded()
	n := 0
	return func() (int, bool) {
		n++
		if r.IntN(5) == 0 {
			return r.IntN(100_000), true
		}
		return (n/100_000*5000 + r.IntN(5000)) % 100_000, true
	}
}

// startFlood asks for an id once in seven of ten requests, and for 100,000 ids by Zipf 1.0 in the others.
func startFlood(int) func() (int, bool) {
	r := seeded()
	next := byZipf(r, 100_000, 1)
	n := 0
	return func() (int, bool) {
		if n++; r.IntN(10) < 7 {
			return beyond + n, true
		}
		return next(), true
	}
}

// startLoop asks for a tenth more ids than there is room for, in turn.
func startLoop(entries int) func() (int, bool) {
	n := 0
	return func() (int, bool) { n++; return n % (entries * 11 / 10), true }
}

// startOLTP is like the pages of a database under transactions: roots of indexes, rows that were
// inserted lately, reads of ranges, and others by Zipf 0.9.
func startOLTP(int) func() (int, bool) {
	r := seeded()
	roots, rows := byZipf(r, 2000, 1.1), byZipf(r, 190_000, 0.9)
	const first = 1_000_000 // inserted row
	head, at, left := 0, 0, 0
	return func() (int, bool) {
		if left > 0 {
			left--
			at++
			return 2000 + at%190_000, true
		}
		switch p := r.IntN(100); {
		case p < 30:
			return roots(), true
		case p < 70:
			if r.IntN(10) == 0 {
				head++
			}
			return first + max(0, head-int(r.ExpFloat64()*5000)), true
		case p < 98:
			return 2000 + rows(), true
		}
		at, left = r.IntN(190_000), 30
		return 2000 + at, true
	}
}
