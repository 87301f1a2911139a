package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/levee-go/levee/examples/internal/console"
)

// A report prints the table phase by phase, as they end.
type report struct {
	out      io.Writer
	markdown bool
}

var columns = []string{"follows", "changes", "p50", "p99", "slowest", "missing", "answers", "stale"}

func (r *report) opening(s scale, database, redis string) {
	fmt.Fprintf(r.out, "levee feed: %s, %s, %d readers, %d products, TTL %v, a change every %v by a job without levee\n",
		database, redis, readers, s.products, s.ttl, s.every)
	fmt.Fprintf(r.out, "p50, p99, slowest: from the commit of a change until the reader serves it; missing: changes not served at the end of the phase,\n"+
		"which count with their age then; second by second: the slowest of the changes that were committed in it; stale: answers given %v or more after a newer price was committed\n", s.grace)
	if r.markdown {
		fmt.Fprintf(r.out, "\n| | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
		return
	}
	fmt.Fprintf(r.out, "\n%-12s", "")
	for _, c := range columns {
		fmt.Fprintf(r.out, "%10s", c)
	}
	fmt.Fprintln(r.out)
}

// phase begins the rows of a phase.
func (r *report) phase(name string) {
	if r.markdown {
		fmt.Fprintf(r.out, "| **%s** |%s\n", name, strings.Repeat(" |", len(columns)))
		return
	}
	fmt.Fprintln(r.out, name)
}

func (r *report) row(m row) {
	cells := []string{"killed", "", "", "", "", "", "", ""}
	if !m.killed {
		follows := "no"
		if m.follows {
			follows = "yes"
		}
		cells = []string{
			follows, console.Count(m.changes), console.Millis(m.p50), console.Millis(m.p99), console.Millis(m.slowest),
			console.Count(m.missing), console.Count(m.answers), console.Count(m.stale),
		}
	}
	if r.markdown {
		fmt.Fprintf(r.out, "| %s | %s |\n", m.reader, strings.Join(cells, " | "))
		r.seconds(m)
		return
	}
	line := fmt.Sprintf("  %-10s", m.reader)
	for _, c := range cells {
		line += fmt.Sprintf("%10s", c)
	}
	fmt.Fprintln(r.out, strings.TrimRight(line, " "))
	r.seconds(m)
}

// seconds tells when the reader saw the changes of each second of the phase.
func (r *report) seconds(m row) {
	if len(m.seconds) == 0 {
		return
	}
	var waits []string
	for _, wait := range m.seconds {
		waits = append(waits, fmt.Sprintf("+%d", wait.Milliseconds()))
	}
	r.note("    second by second, ms: %s", strings.Join(waits, "  "))
}

// note tells what the columns do not.
func (r *report) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if r.markdown {
		text = "| *" + strings.TrimSpace(text) + "* |" + strings.Repeat(" |", len(columns))
	}
	fmt.Fprintln(r.out, text)
}

func (r *report) closing(took time.Duration) {
	fmt.Fprintf(r.out, "\nmeasured in %.0f s\n", took.Seconds())
}
