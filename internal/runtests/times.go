package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A timed is how long a test took with its subtests, or a package if test is "".
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
	slices.SortStableFunc(ran, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	if len(ran) == 0 {
		return ""
	}
	text := "\nThe slowest tests:\n"
	for _, t := range ran[:min(len(ran), slowestTests)] {
		text += fmt.Sprintf("%8.1f s  %s %s\n", t.seconds, strings.TrimPrefix(t.pkg, module), t.test)
	}
	return text
}

// readTimes reads what writeTimes has written.
func readTimes(name string) ([]timed, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var times []timed
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 4 {
			return nil, fmt.Errorf("%s: want four columns in %q", name, line)
		}
		seconds, err := strconv.ParseFloat(fields[2], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		times = append(times, timed{fields[0], fields[1], seconds, fields[3]})
	}
	return times, nil
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
