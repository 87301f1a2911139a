package main

import (
	"bufio"
	"encoding/json"
	"io"
	"regexp"
	"strings"
)

// An event is a line that go test -json prints; "go doc test2json" and "go help
// buildjson" describe them.
type event struct {
	Action      string
	Package     string
	Test        string
	Elapsed     float64 // seconds
	Output      string
	ImportPath  string // of a build
	FailedBuild string // the ImportPath of the build that failed
}

// A pkg is what go test reported of one package.
type pkg struct {
	name    string
	result  string  // pass, fail or skip
	elapsed float64 // seconds

	tests   []string          // with subtests, in the order they began
	results map[string]string // of tests: pass, fail, skip; "" if the process ended before
	lines   []line
	times   []timed // of tests without subtests that ended, and of the package last

	exited      bool   // the test binary ran all tests and printed FAIL before it exited
	raceOutside bool   // a data race outside of the tests
	cached      bool   // nothing ran: go test repeats what was printed before
	failedBuild string // what did not build, if that is why the package failed
}

// A line is a line of output, with the test that ran when it was printed.
type line struct{ test, text string }

// read reads events up to the end of r and calls done for each package that ends. It
// returns what builds printed, by import path.
func read(r io.Reader, done func(*pkg)) map[string]string {
	builds, pkgs := map[string]string{}, map[string]*pkg{}
	lines := bufio.NewReader(r)
	for {
		text, err := lines.ReadBytes('\n')
		if err != nil {
			return builds
		}
		var e event
		if json.Unmarshal(text, &e) != nil {
			continue
		}
		if e.Package == "" {
			builds[e.ImportPath] += e.Output
			continue
		}
		p := pkgs[e.Package]
		if p == nil {
			p = &pkg{name: e.Package, results: map[string]string{}}
			pkgs[e.Package] = p
		}
		p.add(e)
		if p.result != "" {
			done(p)
		}
	}
}

func (p *pkg) add(e event) {
	switch e.Action {
	case "run":
		p.tests = append(p.tests, e.Test)
		p.results[e.Test] = ""
	case "output":
		p.output(e.Test, e.Output)
	case "pass", "fail", "skip":
		if e.Test != "" {
			p.results[e.Test] = e.Action
			if !strings.Contains(e.Test, "/") {
				p.times = append(p.times, timed{p.name, e.Test, e.Elapsed, e.Action})
			}
			return
		}
		p.result, p.elapsed, p.failedBuild = e.Action, e.Elapsed, e.FailedBuild
		p.timePackage()
	}
}

// timePackage adds the package's own time. If it is cached, that is what its tests took when
// they ran.
func (p *pkg) timePackage() {
	if len(p.tests) == 0 {
		return
	}
	all := timed{p.name, "", p.elapsed, p.result}
	if p.cached {
		all.seconds, all.result = 0, "cached"
		for i := range p.times {
			all.seconds += p.times[i].seconds
			p.times[i].result = "cached"
		}
	}
	p.times = append(p.times, all)
}

// chatter explains no failure: the marks that go test prints, and the log lines of
// go-redis, which come from all clients of the process.
var chatter = regexp.MustCompile(`^(=== (RUN|PAUSE|CONT|NAME) |redis: \d{4}/|FAIL\s)`)

func (p *pkg) output(test, text string) {
	if test == "" {
		p.exited = p.exited || text == "FAIL\n"
		p.cached = p.cached || strings.HasPrefix(text, "ok  \t") && strings.HasSuffix(text, "\t(cached)\n")
		p.raceOutside = p.raceOutside || strings.HasPrefix(text, "testing: race detected outside of test")
	}
	if !chatter.MatchString(text) {
		p.lines = append(p.lines, line{test, text})
	}
}

// having names the tests, without subtests, that had this result.
func (p *pkg) having(result string) []string {
	var names []string
	for _, name := range p.tests {
		if !strings.Contains(name, "/") && p.results[name] == result {
			names = append(names, name)
		}
	}
	return names
}

// failedTests names the tests that failed. It returns nil if the package failed for
// another reason too.
func (p *pkg) failedTests() []string {
	if !p.exited || p.raceOutside {
		return nil
	}
	return p.having("fail")
}

// why is the output of a failed test, or of a failed package if test is "", without
// that of the tests and subtests that passed.
func (p *pkg) why(test string) string {
	var text strings.Builder
	for _, l := range p.lines {
		belongs := test == "" || l.test == test || strings.HasPrefix(l.test, test+"/")
		if result := p.results[l.test]; belongs && result != "pass" && result != "skip" {
			text.WriteString(l.text)
		}
	}
	if open := p.having(""); test == "" && len(open) > 0 {
		text.WriteString("The process ended before the end of " + strings.Join(open, ", ") + "\n")
	}
	return text.String()
}
