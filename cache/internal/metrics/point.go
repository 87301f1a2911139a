package metrics

import (
	"slices"

	"github.com/levee-go/levee/cache"
)

// A Point is the values of a family for the things of one name.
type Point struct {
	Values    []float64       // one for each outcome, or one; nil for a histogram
	Histogram cache.Histogram // the sum, if several things have one name
}

// point reads the values of a family from a snapshot.
func (f Family[S]) point(s *S) Point {
	switch {
	case f.Histogram != nil:
		return Point{Histogram: f.Histogram(s)}
	case f.Outcomes != nil:
		p := Point{Values: make([]float64, len(f.Outcomes))}
		for i, o := range f.Outcomes {
			p.Values[i] = float64(o.Value(s))
		}
		return p
	default:
		return Point{Values: []float64{f.Value(s)}}
	}
}

// readings are the points of a Set.
type readings map[reading]Point

type reading struct {
	*Info
	name string
}

// put adds the points of all families of a thing to the points of the same name.
func put[S any](all readings, families []Family[S], name string, s *S, has Part) {
	for _, f := range families {
		if f.Of&has == f.Of {
			all.add(reading{infos[f.Name], name}, f.point(s), f.Fold)
		}
	}
}

func (all readings) add(at reading, p Point, fold func(a, b float64) float64) {
	before, there := all[at]
	switch {
	case !there:
		all[at] = p
	case fold != nil:
		all[at] = Point{Values: []float64{fold(before.Values[0], p.Values[0])}}
	default:
		all[at] = before.plus(p)
	}
}

// plus returns the sum of two points of a family.
func (p Point) plus(other Point) Point {
	p.Values = slices.Clone(p.Values)
	for i, v := range other.Values {
		p.Values[i] += v
	}
	h := &p.Histogram
	if h.Counts == nil {
		h.Bounds, h.Counts = other.Histogram.Bounds, make([]uint64, len(other.Histogram.Counts))
	}
	h.Counts = slices.Clone(h.Counts)
	for i, count := range other.Histogram.Counts {
		h.Counts[i] += count
	}
	h.Sum += other.Histogram.Sum
	return p
}

// minus subtracts the counters of other, which may be zero, from p.
func (p Point) minus(other Point) Point {
	p.Values = slices.Clone(p.Values)
	for i, v := range other.Values {
		p.Values[i] = max(0, p.Values[i]-v)
	}
	h := &p.Histogram
	h.Counts = slices.Clone(h.Counts)
	for i, count := range other.Histogram.Counts {
		h.Counts[i] -= min(h.Counts[i], count)
	}
	h.Sum -= min(h.Sum, other.Histogram.Sum)
	return p
}
