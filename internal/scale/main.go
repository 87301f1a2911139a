// Scale simulates fleets of processes that share a cache, and prints the tables of
// docs/internals/scaling.md:
//
//	go run ./internal/scale                                              # the tables
//	go run ./internal/scale -processes 300 -reads 2000 -writes 50       # a fleet of your own
//
// What a fleet does is simulated by fleet.go and key.go, which a test compares with real
// caches on a real Redis. What that takes of Redis is priced in prices.go, by figures
// that internal/bench has measured.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	f := service
	flag.IntVar(&f.Processes, "processes", f.Processes, "processes")
	flag.Float64Var(&f.Reads, "reads", f.Reads, "Gets a second of each process")
	flag.IntVar(&f.Keys, "keys", f.Keys, "keys that are read")
	flag.Float64Var(&f.Zipf, "zipf", f.Zipf, "popularity: reads of the key of rank r are in proportion to 1/r^zipf; 0: all alike")
	flag.Float64Var(&f.Writes, "writes", f.Writes, "writes a second of the whole fleet, over the keys as the reads are")
	flag.IntVar(&f.Messages, "messages", f.Messages, "messages of a write: 2 for Write, 1 for Invalidate")
	flag.IntVar(&f.LocalKeys, "local-keys", f.LocalKeys, "keys that the tier of a process has room for; 0: it is off")
	seconds("load", &f.Load, "how long the source takes to load a value")
	seconds("ttl", &f.TTL, "Options.TTL")
	seconds("local-ttl", &f.LocalTTL, "Options.Local.TTL")
	seconds("stale", &f.StaleWhileRevalidate, "Options.StaleWhileRevalidate")
	flag.Parse()
	if flag.NFlag() == 0 {
		tables(os.Stdout)
		return
	}
	card(os.Stdout, f)
}

// seconds makes a flag for a duration of a Fleet.
func seconds(name string, to *float64, usage string) {
	usual := time.Duration(*to * float64(time.Second))
	flag.Func(name, fmt.Sprintf("%s (default %v)", usage, usual), func(text string) error {
		d, err := time.ParseDuration(text)
		*to = d.Seconds()
		return err
	})
}

// card prints what one fleet does.
func card(out io.Writer, f Fleet) {
	r := f.Run(1)
	l := Measured.Load(f, r)
	asks, loads := f.First()
	n := float64(f.Processes)
	for _, line := range [][2]string{
		{"Gets a second", number(r.Gets)},
		{"answered in the process", percent(r.Local())},
		{"reads of Redis a second", number(r.Asks)},
		{"scripts in Redis a second", number(r.Scripts())},
		{"loads a second", number(r.Loads) + ", at a time " + number(r.Loads*f.Load)},
		{"Gets that wait for a load", percent((r.Waits + r.Joined) / r.Gets)},
		{"answers past their TTL, from Redis", percent(r.Stale / r.Gets)},
		{"messages a second, each to all processes", number(r.Heard)},
		{"processes that have a key when it is written", had(r, f)},
		{"Redis' processor", percent(l.Busy) + ", by messages " + percent(l.Messages)},
		{"wait for others in Redis, on average", wait(l.Wait)},
		{"writes a second at which commands wait 2 ms for others", number(Measured.Bears(patience, f, r))},
		{"a process' processor, beside hits in it", percent(Measured.Own(f, r))},
		{"memory of Redis", megabytes(r.Stored * Measured.Value)},
		{"memory of a process", megabytes(r.Copies / n * Measured.Copy)},
		{"places at the database, 64 a process", number(64 * n)},
		{"all processes start at once: reads of Redis in the first second", number(asks)},
		{"and Redis is empty: loads in the first second", number(loads)},
	} {
		fmt.Fprintf(out, "%-64s %s\n", line[0], line[1])
	}
}
