package main

import (
	"fmt"
	"io"
	"time"

	"github.com/levee-go/levee/examples/internal/console"
)

// A report prints the timeline as it happens, and the summary.
type report struct {
	out      io.Writer
	markdown bool
}

const sceneWidth = 22

// opening says what is being measured, and what the columns mean.
func (r *report) opening(s *stage) {
	z := s.size
	fmt.Fprintf(r.out, "levee outage: %s; two services of %d processes, each with %s of %d products, %d connections and %v a query;\n"+
		"%s reads a second each, the same products at the same moments, which live for %v; a user waits for %v at the most\n",
		s.redis.Name, z.processes, s.sides[0].store.db.Name, z.rows, z.connections, z.queryTime, console.Count(z.reads), z.ttl, z.patience)
	fmt.Fprint(r.out, "fresh, stale, errors: what users got; p99: what they waited; queries: asked of the database; at once: the most that ran or\n"+
		"waited for a connection; breakers: those open in each process, R to Redis, D to the database, d if it is half open\n\n")
	fmt.Fprintf(r.out, "%4s  %-*s |%s |%s\n", "", sceneWidth, "", centred(s.sides[0].name, 41), centred(s.sides[1].name, 48))
	fmt.Fprintf(r.out, "%4s  %-*s |%7s%8s%10s%9s%8s |%7s%7s%8s%10s%9s%8s  %s\n", "", sceneWidth, "",
		"fresh", "errors", "p99", "queries", "at once", "fresh", "stale", "errors", "p99", "queries", "at once", "breakers")
}

func centred(text string, width int) string {
	left := (width - len(text)) / 2
	return fmt.Sprintf("%*s%*s", left+len(text), text, width-left-len(text), "")
}

// line is one beat.
func (r *report) line(beat int, length time.Duration, s scene, plain, levee figures) {
	fmt.Fprintf(r.out, "%3.0fs  %-*s |%7d%8d%10s%9d%8d |%7d%7d%8d%10s%9d%8d  %s\n",
		(time.Duration(beat) * length).Seconds(), sceneWidth, s.name,
		plain.fresh, plain.errors, console.Millis(plain.percentile(99)), plain.queries, plain.peak,
		levee.fresh, levee.stale, levee.errors, console.Millis(levee.percentile(99)), levee.queries, levee.peak, levee.breakers)
}

// summary sets the two services side by side, scene by scene.
func (r *report) summary(scores []score) {
	form, header := "%-22s%8s |%8s%10s%9s%9s |%8s%8s%10s%9s%9s\n", ""
	if r.markdown {
		form = "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n"
		header = "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
		fmt.Fprintf(r.out, "\n"+form, "", "reads", "plain: errors", "p99", "queries", "at once", "levee: errors", "stale", "p99", "queries", "at once")
	} else {
		fmt.Fprintf(r.out, "\nIn all:\n"+form, "", "", "plain", "", "", "", "levee", "", "", "", "")
		fmt.Fprintf(r.out, form, "", "reads", "errors", "p99", "queries", "at once", "errors", "stale", "p99", "queries", "at once")
	}
	fmt.Fprint(r.out, header)
	for _, s := range scores {
		p, l := s.plain, s.levee
		fmt.Fprintf(r.out, form, s.scene.name, console.Count(p.asked()),
			console.Count(p.errors), console.Millis(p.percentile(99)), console.Count(int(p.queries)), console.Count(int(p.peak)),
			console.Count(l.errors), console.Count(l.stale), console.Millis(l.percentile(99)), console.Count(int(l.queries)), console.Count(int(l.peak)))
	}
	for _, s := range scores {
		if err := s.levee.firstError; err != nil {
			fmt.Fprintf(r.out, "\nthe first error of levee, while %s: %v\n", s.scene.name, err)
			return
		}
	}
}
