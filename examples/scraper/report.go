package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/levee-go/levee/examples/internal/console"
)

// A report prints the table row by row as the runs end, and in between shows on another stream that the program is alive.
type report struct {
	out      io.Writer
	progress io.Writer
	markdown bool
	began    time.Time
}

// A result is what one run measured.
type result struct {
	way             way
	scraped, odd    int64
	queries, absent int64 // absent: of the queries, those for rows that do not exist
	commands, keys  int64 // of Redis
	heap, atFirst   int64 // in bytes, above that before the first run; atFirst: before the attack
	p50, p99        time.Duration
	visits          int
	missed, errors  int // of the visits: "no such product"; no right answer
	firstError      string
	made, rebuilds  int
}

var columns = []struct {
	name  string
	width int
}{
	{"scraped", 11}, {"queries", 10}, {"commands", 10}, {"keys", 8}, {"heap", 10}, {"p50", 9}, {"p99", 9}, {"404s", 6}, {"errors", 8},
}

const wayWidth = 30

// opening says what is being measured, and what the columns mean.
func (r *report) opening(server *redisServer, catalogue *Catalogue, s settings) {
	size := s.size
	fmt.Fprintf(r.out, "levee scraper: %s with %s products, %d connections and %v a query; %s; %d processes; filter: one id in %.0f passes\n",
		catalogue.db.Name, console.Count(int64(s.rows)), size.connections, size.queryTime, server.Name, size.processes, 1/size.rate)
	fmt.Fprintf(r.out, "For %v each: %s visits of honest users over HTTP, a new product every %v, and a scraper in a process\n"+
		"of its own that asks for random ids, at most %s a second over %d connections.\n",
		size.lasts, console.Count(int64(size.visits)), size.newEvery, console.Count(int64(size.requests)), size.clients)
	commands := "that Redis executed, those in scripts and of others included"
	if server.embedded {
		commands = "sent to Redis"
	}
	fmt.Fprintf(r.out, "scraped: ids answered; queries: asked of the database; commands: %s; keys: in Redis at the end;\n"+
		"heap: what this program has come to use", commands)
	if server.embedded {
		fmt.Fprint(r.out, ", the embedded Redis included")
	}
	fmt.Fprint(r.out, "; p50, p99, 404s, errors: what honest users saw; all they ask for exists\n\n")
	r.heading()
}

func (r *report) heading() {
	if r.markdown {
		fmt.Fprint(r.out, "| |")
		for _, c := range columns {
			fmt.Fprintf(r.out, " %s |", c.name)
		}
		fmt.Fprintf(r.out, "\n|---|%s\n", strings.Repeat("---:|", len(columns)))
		return
	}
	fmt.Fprintf(r.out, "%-*s", wayWidth, "")
	for _, c := range columns {
		fmt.Fprintf(r.out, "%*s", c.width, c.name)
	}
	fmt.Fprintln(r.out)
}

// row prints the result of a run.
func (r *report) row(m result) {
	cells := []string{
		console.Count(m.scraped), console.Count(m.queries), console.Count(m.commands), console.Count(m.keys), megabytes(m.heap),
		console.Millis(m.p50), console.Millis(m.p99), console.Count(int64(m.missed)), console.Count(int64(m.errors)),
	}
	if r.markdown {
		fmt.Fprintf(r.out, "| %v | %s |\n", m.way, strings.Join(cells, " | "))
		return
	}
	fmt.Fprintf(r.out, "%-*v", wayWidth, m.way)
	for i, c := range cells {
		fmt.Fprintf(r.out, "%*s", columns[i].width, c)
	}
	fmt.Fprintf(r.out, "\n    %s\n", m.note())
	if m.errors > 0 {
		fmt.Fprintf(r.out, "    the first error: %s\n", m.firstError)
	}
}

// note tells what the columns do not.
func (m result) note() string {
	note := fmt.Sprintf("queries for absent products: %s, %.3g %% of the ids scraped; heap before the attack: %s; %d products made",
		console.Count(m.absent), 100*float64(m.absent)/float64(max(m.scraped, 1)), megabytes(m.atFirst), m.made)
	if m.rebuilds > 0 {
		note += fmt.Sprintf("; %d rebuilds of the filter", m.rebuilds)
	}
	if m.odd > 0 {
		note += fmt.Sprintf("; %s other answers to the scraper", console.Count(m.odd))
	}
	return note
}

// closing says how much it was, and how long it took.
func (r *report) closing(results []result) {
	var scraped int64
	for _, m := range results {
		scraped += m.scraped
	}
	fmt.Fprintf(r.out, "\n%s random ids in all; measured in %.0f s\n", console.Count(scraped), time.Since(r.began).Seconds())
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
