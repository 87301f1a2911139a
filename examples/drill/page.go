package main

import (
	"fmt"

	"github.com/levee-go/levee/examples/internal/chart"
	"github.com/levee-go/levee/examples/internal/console"
)

func (s settings) page(around surroundings) chart.Page {
	return chart.Page{
		Title: "Three floods and a race",
		Intro: []string{
			fmt.Sprintf("The same load, once through a plain cache-aside and once through levee: %d processes each, on %s and %s. "+
				"A query takes %v, and there are %d connections.",
				s.size.processes, around.redis.Name, around.store.name, s.size.database.queryTime, s.size.database.connections),
			"Each line begins when the flood comes, and counts on: a steep line is a flood that reaches the database, a flat one is a flood that does not.",
		},
	}
}

// chart draws the first and the last step of a scene.
func (s settings) chart(number int, results []row) chart.Chart {
	scene := scenes[number]
	c := chart.Chart{Title: scene.title(s.size), Unit: "queries", Says: "Queries of the database since the flood came."}
	measured := func(r reading) float64 { return float64(r.queries) }
	if scene.showsStale {
		c.Unit, c.Says = "stale answers", "Answers older than a write that was acknowledged before the read began."
		measured = func(r reading) float64 { return float64(r.stale) }
	}
	first, last := results[0], results[len(results)-1]
	for _, m := range []row{first, last} {
		line := chart.Line{Name: m.step}
		for _, r := range m.readings {
			line.Points = append(line.Points, chart.Point{X: r.at.Seconds(), Y: measured(r)})
		}
		c.Lines = append(c.Lines, line)
	}
	c.Lines[1].Name = "levee"
	if !scene.showsStale {
		c.Says += fmt.Sprintf(" At once there were %s with the plain cache, %s with levee; 99 of 100 users waited for at most %s with the plain cache, %s with levee.",
			console.Count(first.peak), console.Count(last.peak), console.Millis(first.p99), console.Millis(last.p99))
	}
	return c
}
