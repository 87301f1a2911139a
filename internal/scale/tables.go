package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// service is the fleet of the tables, where they do not say otherwise.
var service = func() Fleet {
	f := Defaults
	f.Processes, f.Reads, f.Keys, f.Zipf, f.Load = 100, 1000, 1_000_000, 1, 0.02
	f.Writes = 10
	return f
}()

// patience is how long a command may wait for others in a Redis that bears its load.
const patience = 0.002

// enough is how busy a Redis may be with commands.
const enough = 0.7

// sizes are the fleets that the tables ask about. Their writes grow with their reads.
var sizes = []int{1, 10, 100, 1000, 10_000}

func (f Fleet) sized(n int) Fleet {
	f.Writes *= float64(n) / float64(f.Processes)
	f.Processes = n
	return f
}

// ran are the fleets that have been simulated: several tables ask about the same.
var ran = map[Fleet]Rates{}

func (f Fleet) rates() Rates {
	r, ok := ran[f]
	if !ok {
		r = f.Run(1)
		ran[f] = r
	}
	return r
}

// tables prints the tables of docs/internals/scaling.md.
func tables(out io.Writer) {
	growing(out)
	knobs(out)
	messages(out)
	starts(out)
}

// growing is about fleets that grow.
func growing(out io.Writer) {
	fmt.Fprint(out, "### Fleets that grow\n\n")
	row(out, "processes", "Gets/s", "in the process", "reads of Redis/s", "scripts/s", "loads/s", "messages/s", "Redis busy", "by messages", "wait in Redis", "Redis' memory", "masters")
	rule(out, 12)
	for _, n := range sizes {
		f := service.sized(n)
		r := f.rates()
		l := Measured.Load(f, r)
		row(out, number(float64(n)), number(r.Gets), percent(r.Local()), number(r.Asks), number(r.Scripts()), number(r.Loads), number(r.Heard),
			percent(l.Busy), percent(l.Messages), wait(l.Wait), megabytes(r.Stored*Measured.Value), number(float64(Measured.Masters(f, r))))
	}
	fmt.Fprintln(out)
}

// knobs is about what one setting, or one habit of the readers, changes.
func knobs(out io.Writer) {
	fmt.Fprint(out, "### One thing other, 100 processes\n\n")
	row(out, "", "in the process", "reads of Redis/s", "loads/s", "wait for a load", "stale", "Redis busy", "a process", "memory of Redis", "of a process")
	rule(out, 10)
	for _, k := range []struct {
		name   string
		change func(*Fleet)
	}{
		{"as above", func(*Fleet) {}},
		{"100 Gets/s a process", func(f *Fleet) { f.Reads = 100 }},
		{"10,000 Gets/s a process", func(f *Fleet) { f.Reads = 10_000 }},
		{"10,000 keys", func(f *Fleet) { f.Keys = 10_000 }},
		{"100 M keys", func(f *Fleet) { f.Keys = 100_000_000 }},
		{"Zipf 0.8", func(f *Fleet) { f.Zipf = 0.8 }},
		{"Zipf 1.2", func(f *Fleet) { f.Zipf = 1.2 }},
		{"`Local.MaxBytes` of 8 MiB", func(f *Fleet) { f.LocalKeys = Defaults.LocalKeys / 8 }},
		{"no tier in the process", func(f *Fleet) { f.LocalKeys = 0 }},
		{"`Local.TTL` of 5 s", func(f *Fleet) { f.LocalTTL = 5 }},
		{"`Local.TTL` of 30 s", func(f *Fleet) { f.LocalTTL = 30 }},
		{"`TTL` of 1 min", func(f *Fleet) { f.TTL = 60 }},
		{"`TTL` of 1 h", func(f *Fleet) { f.TTL = 3600 }},
		{"a load takes 200 ms", func(f *Fleet) { f.Load = 0.2 }},
		{"no writes", func(f *Fleet) { f.Writes = 0 }},
		{"100 writes/s", func(f *Fleet) { f.Writes = 100 }},
		{"1,000 writes/s", func(f *Fleet) { f.Writes = 1000 }},
	} {
		f := service
		k.change(&f)
		r := f.rates()
		row(out, k.name, percent(r.Local()), number(r.Asks), number(r.Loads), percent((r.Waits+r.Joined)/r.Gets), percent(r.Stale/r.Gets),
			percent(Measured.Load(f, r).Busy), percent(Measured.Own(f, r)), megabytes(r.Stored*Measured.Value), megabytes(r.Copies/float64(f.Processes)*Measured.Copy))
	}
	fmt.Fprintln(out)
}

// messages is about what it takes to tell all processes.
func messages(out io.Writer) {
	p := Measured
	fmt.Fprint(out, "### Messages\n\n")
	row(out, "processes", "a round of telling", "messages/s at a wait of 2 ms", "with a relay for every 20 processes", "on a cluster of 6", "messages/s that end it", "a key's holders when it is written", "Redis busy, telling all", "by tracking")
	rule(out, 9)
	for _, n := range sizes[1:] {
		f := service.sized(n)
		r := f.rates()
		alone := func(n int) string {
			one := Fleet{Processes: max(1, n), Messages: 1}
			if w := p.Bears(patience, one, Rates{}); w > 0 {
				return number(w)
			}
			return "0"
		}
		round := float64(n) * p.Write
		told := p.Load(f, Rates{Heard: r.Heard})
		tracking := (r.Told*p.Tracked + r.Asks*p.Tracking) / 1e6
		row(out, number(float64(n)), micros(round), alone(n), alone(n/20), alone(n/6), number(1e6/(float64(n)*p.Text+p.Script)), number(r.Had/f.Writes), percent(told.Messages), percent(tracking))
	}
	fmt.Fprintln(out)
}

// starts is about the database, and the moments in which the caches do not hold.
func starts(out io.Writer) {
	fmt.Fprint(out, "### The database, and the first second\n\n")
	row(out, "processes", "loads at a time", "places, 64 each", "degraded, 16 each", "`MaxConcurrent` for 500 connections", "all start: reads of Redis in 1 s", "and Redis is empty: loads in 1 s")
	rule(out, 7)
	for _, n := range sizes {
		f := service.sized(n)
		r := f.rates()
		asks, loads := f.First()
		row(out, number(float64(n)), number(r.Loads*f.Load), number(64*float64(n)), number(16*float64(n)), limit(500/n), number(asks), number(loads))
	}
	fmt.Fprintln(out)
}

func limit(n int) string {
	switch {
	case n == 0:
		return "none: a pooler"
	case n >= 64:
		return "64, as it is"
	}
	return strconv.Itoa(n)
}

func row(out io.Writer, cells ...string) { fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | ")) }

func rule(out io.Writer, columns int) {
	fmt.Fprintf(out, "|---|%s\n", strings.Repeat("---:|", columns-1))
}

// number prints three digits that count, with commas: the simulation knows no more.
func number(x float64) string {
	switch {
	case x < 0.005:
		return "0"
	case x < 10:
		return strconv.FormatFloat(x, 'g', 2, 64)
	}
	unit := math.Pow(10, max(0, math.Floor(math.Log10(x))-1))
	digits := strconv.FormatFloat(math.Round(x/unit)*unit, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func percent(share float64) string {
	switch p := 100 * share; {
	case p >= 1000:
		return fmt.Sprintf("%.0f times", share)
	case p >= 100:
		return fmt.Sprintf("%.1f times", share)
	case p >= 99.5, p < 0.05 && p > 0.0005:
		return fmt.Sprintf("%.2f %%", p)
	case p >= 10:
		return fmt.Sprintf("%.0f %%", p)
	default:
		return fmt.Sprintf("%.1f %%", p)
	}
}

func micros(µs float64) string {
	if µs >= 1000 {
		return number(µs/1000) + " ms"
	}
	return number(µs) + " µs"
}

func wait(seconds float64) string {
	if math.IsInf(seconds, 1) {
		return "does not keep up"
	}
	return micros(1e6 * seconds)
}

func megabytes(bytes float64) string {
	if bytes >= 1e9 {
		return number(bytes/1e9) + " GB"
	}
	return number(bytes/1e6) + " MB"
}

// had is how many processes have a key when it is written.
func had(r Rates, f Fleet) string {
	if f.Writes == 0 {
		return "no writes"
	}
	return number(r.Had / f.Writes)
}
