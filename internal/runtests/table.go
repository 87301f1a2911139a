package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A row is what a package took, in all commands that ran it.
type row struct {
	name    string
	seconds float64
	tests   map[string]float64 // seconds; of a test that ran several times, the longest
	cached  bool
}

// Packages that took fewer seconds than this share a row of the table.
const ownRow = 5

// module is what our import paths have before the directory.
const module = "github.com/levee-go/levee/"

// table is a Markdown table of packages, the longest first.
func table(times []timed) string {
	text := "| package | seconds | tests | the slowest |\n|---|---:|---:|---|\n"
	small, few, all := 0, sum{}, sum{}
	for _, r := range rows(times) {
		all.add(r)
		if r.seconds < ownRow {
			few.add(r)
			small++
			continue
		}
		if r.cached {
			r.name += " (cached)"
		}
		text += fmt.Sprintf("| %s | %.0f | %d | %s |\n", r.name, r.seconds, len(r.tests), r.slowest())
	}
	if small > 0 {
		text += fmt.Sprintf("| %d others | %.0f | %d | |\n", small, few.seconds, few.tests)
	}
	return text + fmt.Sprintf("| all | %.0f | %d | |\n", all.seconds, all.tests)
}

// A sum is of several rows.
type sum struct {
	seconds float64
	tests   int
}

func (s *sum) add(r *row) {
	s.seconds += r.seconds
	s.tests += len(r.tests)
}

// rows adds the times up by package, the longest first.
func rows(times []timed) []*row {
	byName := map[string]*row{}
	for _, t := range times {
		r := byName[t.pkg]
		if r == nil {
			r = &row{name: strings.TrimPrefix(t.pkg, module), tests: map[string]float64{}}
			byName[t.pkg] = r
		}
		if t.test != "" {
			r.tests[t.test] = max(r.tests[t.test], t.seconds)
			continue
		}
		r.seconds += t.seconds
		r.cached = r.cached || t.result == "cached"
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.seconds, a.seconds), strings.Compare(a.name, b.name))
	})
}

// slowest names the three slowest tests, of those that took a second.
func (r *row) slowest() string {
	names := slices.SortedFunc(maps.Keys(r.tests), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.tests[b], r.tests[a]), strings.Compare(a, b))
	})
	var text []string
	for _, name := range names[:min(len(names), 3)] {
		if r.tests[name] >= 1 {
			text = append(text, fmt.Sprintf("%s %.0f", name, r.tests[name]))
		}
	}
	return strings.Join(text, ", ")
}
