package main

import "math"

// Prices are microseconds of the processor, as internal/bench has measured them on the
// machine that docs/internals/scaling.md names. A Redis runs its commands on one processor.
type Prices struct {
	Read     float64 // Redis, for a GETRANGE that comes alone, among those of many processes
	Script   float64 // Redis, for one of the scripts of a miss or a write
	Write    float64 // Redis, for each process that it tells of messages, however many at once
	Text     float64 // Redis, for each process and message
	Tracked  float64 // Redis, for each process that is told of a key by CLIENT TRACKING
	Tracking float64 // Redis, more for a read under CLIENT TRACKING
	Idle     float64 // Redis, in a second for a process that asks nothing: its heartbeat

	Bus float64 // each other node of a cluster, for a message

	OwnHit, OwnMiss, OwnMessage float64 // the process, for a hit in Redis, a miss, and a message that it hears

	Value, Copy float64 // bytes of a key in Redis and in a process
}

// Measured is from docs/internals/scaling.md, What it takes; Bus from docs/operations.md. Made by `go run -C internal/bench . -short -rounds 3 -work operations,publish,flow,commands,memory`.
var Measured = Prices{
	Read: 13, Script: 24, Write: 8, Text: 0.5, Tracked: 9, Tracking: 1.4, Idle: 46, Bus: 10,
	OwnHit: 30, OwnMiss: 240, OwnMessage: 5,
	Value: 389, Copy: 515,
}

// A Load is what a fleet asks of one Redis.
type Load struct {
	Busy     float64 // share of its processor; 1 and more: it does not keep up
	Commands float64 // of that, by all but messages
	Messages float64 // and by telling processes of messages
	Wait     float64 // seconds that a command waits for others, on average; infinite if Redis does not keep up
}

// Load prices what a fleet does. Commands come at random and are served one after the
// other (M/D/1). A message is not: Redis notes it for all processes, and then writes to
// each what has been noted meanwhile. So the more messages there are the cheaper they
// are, but a round of writing takes its time, for which all commands wait. A round
// follows on another if a message has come during that: of a time in which messages
// come at the rate r and a round takes t, rounds take x·e^x / (1 + x·e^x), x = r·t.
func (p Prices) Load(f Fleet, r Rates) (l Load) {
	n := float64(f.Processes)
	commands := (r.Asks*p.Read + r.Scripts()*p.Script + n*p.Idle) / 1e6
	square := (r.Asks*p.Read*p.Read + r.Scripts()*p.Script*p.Script + n*p.Idle*p.Idle) / 1e12
	text := r.Heard * n * p.Text / 1e6
	free := 1 - commands - text
	if free <= 0 {
		return Load{Busy: commands + text, Commands: commands, Messages: text, Wait: math.Inf(1)}
	}
	round := n * p.Write / 1e6
	x := r.Heard * round / free
	rounds := 1.0
	if x < 100 { // else e^x is too much
		rounds = x * math.Exp(x) / (1 + x*math.Exp(x))
	}
	return Load{
		Busy: commands + text + free*rounds, Commands: commands, Messages: text + free*rounds,
		Wait: square/2/free + rounds*round,
	}
}

// Masters is how many a cluster needs, so that each is no busier with commands than this
// and none of them wait for longer, on average. Commands and subscriptions spread over
// them; a message, heartbeats too, goes to all.
func (p Prices) Masters(f Fleet, r Rates) int {
	const most = 1000
	for masters := 1; masters < most; masters++ {
		k := float64(masters)
		one, share := f, r
		one.Processes = int(math.Ceil(float64(f.Processes) / k))
		share.Asks, share.Begins, share.Loads, share.Ends = r.Asks/k, r.Begins/k, r.Loads/k, r.Ends/k
		bus := 0.0
		if masters > 1 {
			bus = (r.Heard + float64(f.Processes)) * p.Bus / 1e6
		}
		l := p.Load(one, share)
		if l.Commands+bus <= enough && l.Wait <= patience {
			return masters
		}
	}
	return most
}

// Own is the share of a processor that the library takes in each process, without the
// hits in the process.
func (p Prices) Own(f Fleet, r Rates) float64 {
	n := float64(f.Processes)
	misses := min(r.Waits+r.Loads, r.Asks)
	return ((r.Asks-misses)/n*p.OwnHit + misses/n*p.OwnMiss + r.Heard*p.OwnMessage) / 1e6
}

// Bears is how many writes a second the Redis of a fleet bears: at which commands wait
// for others no longer than this, on average.
func (p Prices) Bears(wait float64, f Fleet, r Rates) float64 {
	low, high := 0.0, 1e6
	for range 50 {
		writes := (low + high) / 2
		with := r
		with.Ends = writes * float64(f.Messages)
		with.Heard += with.Ends - r.Ends
		if p.Load(f, with).Wait <= wait {
			low = writes
		} else {
			high = writes
		}
	}
	return low
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
