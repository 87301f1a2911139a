package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/levee-go/levee/examples/internal/console"
)

// A report prints the table row by row as the steps end, and in between shows on another stream that the drill is alive.
type report struct {
	out      io.Writer
	progress io.Writer
	markdown bool
	began    time.Time
}

var columns = []string{"queries", "in 100ms", "at once", "p50", "p99", "wrong", "stale", "errors"}

const stepWidth = 34

// opening says what is being measured, and what the columns mean.
func (r *report) opening(database, redis string, s scale) {
	r.began = time.Now()
	fmt.Fprintf(r.out, "levee drill: %s with %d connections and %v a query, %s, %d processes\n",
		database, s.database.connections, s.database.queryTime, redis, s.processes)
	fmt.Fprint(r.out, "queries: of the database; in 100ms: the most within so long; at once: the most that ran or waited for a connection; p50, p99: what readers waited;\n"+
		"wrong: answers for another product, or none for one that exists; stale: older than a write acknowledged before the read began\n")
}

// scene begins a scene's table.
func (r *report) scene(title string) {
	if r.markdown {
		fmt.Fprintf(r.out, "\n**%s**\n\n| step | %s |\n|---|%s\n", title, strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
		return
	}
	fmt.Fprintf(r.out, "\n%s\n%-*s", title, stepWidth, "")
	for _, c := range columns {
		fmt.Fprintf(r.out, "%9s", c)
	}
	fmt.Fprintln(r.out)
}

// A row is what one step measured.
type row struct {
	step                 string
	queries, peak        int64
	busiest              int64 // the most queries within 100 ms
	p50, p99             time.Duration
	wrong, stale, errors int
	note                 string // what the columns do not tell
	firstError           string // the first of the errors
	absent               int64  // queries for rows that do not exist
	old                  int    // stale answers still given the scale's grace after the write
	bursts               []int  // queries for the hot product, expiry by expiry
	importTook           time.Duration
	readings             []reading
}

// row prints the result of a step.
func (r *report) row(m row) {
	cells := []string{
		console.Count(m.queries), console.Count(m.busiest), console.Count(m.peak), console.Millis(m.p50), console.Millis(m.p99),
		console.Count(int64(m.wrong)), console.Count(int64(m.stale)), console.Count(int64(m.errors)),
	}
	if r.markdown {
		fmt.Fprintf(r.out, "| %s | %s |\n", m.step, strings.Join(cells, " | "))
		return
	}
	fmt.Fprintf(r.out, "%-*s", stepWidth, m.step)
	for _, c := range cells {
		fmt.Fprintf(r.out, "%9s", c)
	}
	fmt.Fprintln(r.out)
	if m.note != "" {
		fmt.Fprintf(r.out, "    %s\n", m.note)
	}
	if m.errors > 0 {
		fmt.Fprintf(r.out, "    the first error: %s\n", m.firstError)
	}
}

// closing says how long it took.
func (r *report) closing() {
	fmt.Fprintf(r.out, "\nmeasured in %.0f s\n", time.Since(r.began).Seconds())
}
