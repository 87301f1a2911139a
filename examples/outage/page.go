package main

import (
	"fmt"
	"time"

	"github.com/levee-go/levee/examples/internal/chart"
	"github.com/levee-go/levee/examples/internal/console"
)

// page draws what both services measured, beat by beat.
func (s settings) page(scores []score) chart.Page {
	size := s.size
	errors := chart.Chart{
		Title: "Users without an answer", Unit: "in a second",
		Says: fmt.Sprintf("Of %d users a second of each service. A user waits for %v at the most.", size.reads, size.patience),
	}
	waits := chart.Chart{
		Title: "How long users wait", Unit: "ms",
		Says: "The time within which 99 of 100 have their answer, or know that there is none.",
	}
	atOnce := chart.Chart{
		Title: "Queries at once", Unit: "queries",
		Says: fmt.Sprintf("Those that run and those that wait for one of the %d connections of the service's database, at the most in each second.", size.connections),
	}
	charts := []chart.Chart{errors, waits, atOnce}
	measured := []func(figures) float64{
		func(f figures) float64 { return float64(f.errors) },
		func(f figures) float64 { return f.percentile(99).Seconds() * 1000 },
		func(f figures) float64 { return float64(f.peak) },
	}
	for i := range charts {
		charts[i].Spans = size.spans(scores)
		charts[i].Lines = []chart.Line{{Name: "plain cache-aside"}, {Name: "levee"}}
		end := time.Duration(0)
		for _, score := range scores {
			for _, sides := range score.beats {
				end += size.beat
				for side, f := range sides {
					line := &charts[i].Lines[side]
					line.Points = append(line.Points, chart.Point{X: end.Seconds(), Y: measured[i](f)})
				}
			}
		}
	}
	stale, asked := 0, 0
	for _, score := range scores {
		stale, asked = stale+score.levee.stale, asked+score.levee.asked()
	}
	return chart.Page{
		Title: "Redis and the database are taken away",
		Intro: []string{
			fmt.Sprintf("Two services read the same products at the same moments, %d reads a second each: one through a plain cache-aside, one through levee. "+
				"Each has %d processes and a database of its own with %d connections and %v a query, half of what its users ask for. A product is cached for %v.",
				size.reads, size.processes, size.connections, size.queryTime, size.ttl),
			fmt.Sprintf("In place of errors levee gave %s of its %s users a value past its TTL, marked as stale. What is shaded was out of order.",
				console.Count(stale), console.Count(asked)),
		},
		Charts: charts,
	}
}

// spans are the scenes on the time axis.
func (z scale) spans(scores []score) (spans []chart.Span) {
	var at time.Duration
	for _, score := range scores {
		until := at + time.Duration(len(score.beats))*z.beat
		spans = append(spans, chart.Span{Name: score.scene.name, From: at.Seconds(), To: until.Seconds(), Trouble: score.scene.out != none})
		at = until
	}
	return spans
}
