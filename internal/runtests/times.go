package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A timed is how long a test took, without its subtests' names, or a package if test is "".
type timed struct {
	pkg, test string
	seconds   float64
	result    string // pass, fail or skip; cached if go test only repeated what it had printed before
}

// How many of the slowest tests are named.
const slowestTests = 10

// slowest names the tests that took longest in this run, one in a line.
func (r *runner) slowest() string {
	ran := slices.DeleteFunc(slices.Clone(r.times), func(t timed) bool { return t.test == "" || t.result == "cached" })
	slices.SortStableFunc(ran, bySeconds)
	if len(ran) == 0 {
		return ""
	}
	text := "\nThe slowest tests:\n"
	for _, t := range ran[:min(len(ran), slowestTests)] {
		text += fmt.Sprintf("%8.1f s  %s %s\n", t.seconds, strings.TrimPrefix(t.pkg, module), t.test)
	}
	return text
}

// bySeconds sorts the slowest first.
func bySeconds(a, b timed) int {
	switch {
	case a.seconds > b.seconds:
		return -1
	case a.seconds < b.seconds:
		return 1
	}
	return 0
}

// writeTimes writes a line for each package and test into a file: package, test, seconds and
// result, with tabs between them. The test of a package's own line is empty.
func writeTimes(name string, times []timed) error {
	var text strings.Builder
	for _, t := range times {
		fmt.Fprintf(&text, "%s\t%s\t%.3f\t%s\n", t.pkg, t.test, t.seconds, t.result)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text.String()), 0o600)
}
