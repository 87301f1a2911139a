// Package chart writes what an example has measured as one HTML page: line charts, without scripts and without anything to download.
package chart

import (
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"os"
	"strconv"
	"strings"
)

// A Page is a page of charts.
type Page struct {
	Title  string
	Intro  []string // paragraphs
	Charts []Chart
}

// A Chart shows a few lines over time.
type Chart struct {
	Title string
	Says  string // in a sentence, what one sees
	Unit  string // of the values: "queries", "ms"
	Lines []Line // the first two have the colours of plain and of levee
	Spans []Span
}

// A Line is what was measured of one service, at each X.
type Line struct {
	Name   string
	Points []Point
}

// A Point is a value at a time in seconds.
type Point struct{ X, Y float64 }

// A Span is a stretch of time that has a name: what was broken then.
type Span struct {
	Name     string
	From, To float64 // in seconds
	Trouble  bool    // it is shaded
}

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// WriteFile writes the page to a file.
func (p Page) WriteFile(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if closing := f.Close(); err == nil {
			err = closing
		}
	}()
	return page.Execute(f, p)
}

// The drawing, in the units of the SVG's viewBox.
const (
	width, height            = 760.0, 263.0
	left, right, top, bottom = 56.0, 16.0, 43.0, 28.0
	plotWidth, plotHeight    = width - left - right, height - top - bottom
	mostTicks                = 6
)

// A drawing is what the template shows of a chart.
type drawing struct {
	Width, Height, Left, Right, Top, Bottom, PlotHeight float64
	XTicks, YTicks                                      []tick
	Lines                                               []path
	Spans                                               []area
}

type tick struct {
	At   float64
	Text string
}

type path struct {
	Class, D string
}

type area struct {
	X, Width     float64
	NameX, NameY float64 // the names of neighbours, and of theirs, stand at different heights
	Anchor       string  // which end of the name is at NameX
	Name         string
	Trouble      bool
}

// Drawing is for the template.
func (c Chart) Drawing() drawing {
	var last, highest float64
	for _, l := range c.Lines {
		for _, p := range l.Points {
			last, highest = max(last, p.X), max(highest, p.Y)
		}
	}
	for _, s := range c.Spans {
		last = max(last, s.To)
	}
	stepX, stepY := step(last), step(highest)
	last, highest = max(last, stepX), max(math.Ceil(highest/stepY)*stepY, stepY) // also where nothing has happened
	x := func(v float64) float64 { return math.Round(10*(left+plotWidth*v/last)) / 10 }
	y := func(v float64) float64 { return math.Round(10*(top+plotHeight*(1-v/highest))) / 10 }

	d := drawing{Width: width, Height: height, Left: left, Right: width - right, Top: top, Bottom: height - bottom, PlotHeight: plotHeight}
	for v := 0.0; v <= last*1.001; v += stepX {
		d.XTicks = append(d.XTicks, tick{x(v), number(v) + " s"})
	}
	for v := 0.0; v <= highest*1.001; v += stepY {
		d.YTicks = append(d.YTicks, tick{y(v), number(v)})
	}
	for i, s := range c.Spans {
		a := area{X: x(s.From), Width: x(s.To) - x(s.From), NameX: x(s.From) + 3, NameY: float64(11 + 13*(i%3)), Anchor: "start", Name: s.Name, Trouble: s.Trouble}
		if i > 0 && i == len(c.Spans)-1 {
			a.NameX, a.Anchor = d.Right, "end" // it must not run over the edge
		}
		d.Spans = append(d.Spans, a)
	}
	for i, l := range c.Lines {
		var points strings.Builder
		for j, p := range l.Points {
			command := "L"
			if j == 0 {
				command = "M"
			}
			fmt.Fprintf(&points, "%s%.1f %.1f", command, x(p.X), y(p.Y))
		}
		d.Lines = append(d.Lines, path{c.Class(i), points.String()})
	}
	return d
}

// Class is for the template: which colour line i has.
func (Chart) Class(i int) string { return [...]string{"plain", "levee", "third"}[min(i, 2)] }

// Most is for the legend: the highest value of a line.
func (l Line) Most() string {
	var most float64
	for _, p := range l.Points {
		most = max(most, p.Y)
	}
	return number(most)
}

// step returns the distance of the ticks of an axis that ends at highest: 1, 2 or 5 times a power of ten.
func step(highest float64) float64 {
	if highest <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(highest/mostTicks)))
	for _, times := range []float64{1, 2, 5} {
		if highest/(power*times) <= mostTicks {
			return power * times
		}
	}
	return power * 10
}

// number writes a value without needless digits, its thousands apart.
func number(v float64) string {
	if v >= 100 {
		v = math.Round(v)
	}
	s := strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
	whole, rest, _ := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest != "" {
		whole += "." + rest
	}
	return whole
}
