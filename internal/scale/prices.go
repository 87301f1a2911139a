package main

import "math"

// Prices are microseconds of the processor, as internal/bench has measured them on the
// machine that docs/scale.md names. A Redis runs its commands on one processor.
type Prices struct {
	Read     float64 // Redis, for a GETRANGE that comes alone, among those of many processes
	Script   float64 // Redis, for one of the scripts of a miss or a write
	Delivery float64 // Redis, for each process that hears a message
	Tracked  float64 // Redis, for each process that is told of a key by CLIENT TRACKING
	Tracking float64 // Redis, more for a read under CLIENT TRACKING
	Idle     float64 // Redis, in a second for a process that asks nothing: its heartbeat

	OwnHit, OwnMiss, OwnMessage float64 // the process, for a hit in Redis, a miss, and a message that it hears

	Value, Copy float64 // bytes of a key in Redis and in a process
}

// Measured is from `go run -C internal/bench . -work operations,publish,commands,memory`.
var Measured = Prices{
	Read: 12, Script: 33, Delivery: 8, Tracked: 12, Tracking: 1.1, Idle: 30,
	OwnHit: 30, OwnMiss: 200, OwnMessage: 5,
	Value: 389, Copy: 513,
}

// A Load is what a fleet asks of one Redis.
type Load struct {
	Busy     float64 // share of its processor; 1 and more: it does not keep up
	Messages float64 // of that, by deliveries of messages
	Wait     float64 // seconds that a command waits for others, on average; infinite if it does not keep up
}

// Load prices what a fleet does. Commands come at random and are served one after the
// other (M/G/1): a message to many processes holds up all commands behind it.
func (p Prices) Load(f Fleet, r Rates) (l Load) {
	n := float64(f.Processes)
	var square float64 // of the service times, times the rate
	serve := func(rate, µs float64) float64 {
		l.Busy += rate * µs / 1e6
		square += rate * µs * µs / 1e12
		return rate * µs / 1e6
	}
	serve(r.Asks, p.Read)
	serve(r.Scripts(), p.Script)
	serve(n, p.Idle)
	l.Messages = serve(r.Heard, n*p.Delivery)
	if l.Wait = square / 2 / (1 - l.Busy); l.Busy >= 1 {
		l.Wait = math.Inf(1)
	}
	return l
}

// Own is the share of a processor that the library takes in each process, without the
// hits in the process.
func (p Prices) Own(f Fleet, r Rates) float64 {
	n := float64(f.Processes)
	misses := min(r.Waits+r.Loads, r.Asks)
	return ((r.Asks-misses)/n*p.OwnHit + misses/n*p.OwnMiss + r.Heard*p.OwnMessage) / 1e6
}

// WritesAt is how many writes a second make the Redis of a fleet so busy, beside what it
// does anyway.
func (p Prices) WritesAt(busy float64, f Fleet, r Rates) float64 {
	n, quiet := float64(f.Processes), r.Asks*p.Read+(r.Scripts()-r.Ends)*p.Script+float64(f.Processes)*p.Idle
	return max(0, busy*1e6-quiet) / (float64(f.Messages) * (p.Script + n*p.Delivery))
}

// First are the Gets of the first second after all processes have started anew: those
// that reach Redis, and of these the ones that reach the source if Redis is empty too.
func (f Fleet) First() (asks, loads float64) {
	n, total := float64(f.Processes), 0.0
	strata := f.strata()
	for _, s := range strata {
		total += s.weight * s.popularity
	}
	for _, s := range strata {
		reads := f.Reads * s.popularity / total
		asks += s.weight * n * (1 - math.Exp(-reads))
		loads += s.weight * (1 - math.Exp(-n*reads))
	}
	if f.LocalKeys == 0 {
		asks = n * f.Reads
	}
	return asks, loads
}
