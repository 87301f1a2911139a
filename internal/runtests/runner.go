package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// So many commands run at a time: the second uses the processors while the tests of the
// first wait.
const atATime = 2

// If more tests than this fail in one command, none of them runs again: a server that
// is missing, say, fails all of them.
const tooManyToRepeat = 20

// A runner runs commands and remembers what failed in them.
type runner struct {
	mu  sync.Mutex // guards out
	out io.Writer  // progress
	log io.Writer  // what go itself prints to its standard error, such as downloads; written to concurrently

	passed, failed, skipped int
	failures                []failure
}

type failure struct {
	flaky bool   // it passed when it ran again
	what  string // package and test
	why   string // the output
}

// An outcome is what came of a command.
type outcome struct {
	ended  []*pkg
	builds map[string]string // what they printed, by import path
	err    error
}

// run runs go test with each of these arguments, and when all have ended, so that it is
// alone, again what failed.
func (r *runner) run(commands ...[]string) {
	outcomes := make([]outcome, len(commands))
	var running errgroup.Group
	running.SetLimit(atATime)
	for i, args := range commands {
		running.Go(func() error {
			flags, packages := split(args)
			o := &outcomes[i]
			o.builds, o.err = r.goTest(flags, packages, func(p *pkg) { o.ended = append(o.ended, p) })
			return nil
		})
	}
	_ = running.Wait()
	for i, args := range commands {
		flags, _ := split(args)
		o := outcomes[i]
		failed := r.settle(flags, o.ended, o.builds)
		var exit *exec.ExitError
		explained := failed > 0 && errors.As(o.err, &exit) && exit.ExitCode() == 1
		if o.err != nil && !explained { // go test could not begin, or was killed
			r.fail("go test "+strings.Join(args, " "), o.err.Error()+"\n")
		}
	}
}

// settle counts the tests of packages and runs again what failed in them. It returns
// how many tests and packages failed the first time.
func (r *runner) settle(flags []string, ended []*pkg, builds map[string]string) (failed int) {
	slices.SortFunc(ended, func(a, b *pkg) int { return strings.Compare(a.name, b.name) })
	for _, p := range ended {
		if p.result == "fail" {
			failed += max(1, len(p.failedTests()))
		}
	}
	repeat := failed <= tooManyToRepeat
	if !repeat {
		r.say("Too many failed for chance to be the reason: none runs again.")
	}
	for _, p := range ended {
		tests := p.failedTests()
		switch {
		case p.failedBuild != "":
			r.fail(p.name+" does not build", builds[p.failedBuild])
			builds[p.failedBuild] = "for the reason above: " + p.failedBuild + "\n"
		case p.result == "fail" && len(tests) == 0:
			r.settlePackage(flags, p, repeat)
		default:
			r.count(p)
			r.settleTests(flags, p, tests, repeat)
		}
	}
	return failed
}

// settleTests runs failed tests again and records which of them failed for good.
func (r *runner) settleTests(flags []string, p *pkg, tests []string, repeat bool) {
	for _, test := range tests {
		if repeat && r.again(flags, p.name, test) != nil {
			r.passed++
			r.flaky(p.name+" "+test, p.why(test))
		} else {
			r.fail(p.name+" "+test, p.why(test))
		}
	}
}

// settlePackage runs a package again in which something else than a test failed.
func (r *runner) settlePackage(flags []string, p *pkg, repeat bool) {
	what := p.name + " (the whole package)"
	if repeat {
		if again := r.again(flags, p.name, ""); again != nil {
			r.count(again)
			r.flaky(what, p.why(""))
			return
		}
	}
	r.count(p)
	r.fail(what, p.why(""))
}

// again runs a test alone, or the whole package if test is "", until it passes, at
// most twice. It returns nil if it does not pass.
func (r *runner) again(flags []string, name, test string) *pkg {
	flags = append(slices.Clone(flags), "-count=1")
	if test != "" {
		flags = append(flags, "-run=^"+test+"$") // of several -run the last one counts
	}
	for range 2 {
		var passed *pkg
		_, _ = r.goTest(flags, []string{name}, func(p *pkg) {
			if p.result == "pass" && (test == "" || p.results[test] == "pass") {
				passed = p
			}
		})
		if passed != nil {
			return passed
		}
	}
	return nil
}

// goTest runs go test -json, calls done for each package and returns what builds
// printed. The error contains what go itself printed to its standard error.
func (r *runner) goTest(flags, packages []string, done func(*pkg)) (map[string]string, error) {
	r.say("-- go test", strings.Join(slices.Concat(flags, packages), " "))
	cmd := exec.Command("go", slices.Concat([]string{"test"}, flags, []string{"-json"}, packages)...)
	var printed bytes.Buffer
	cmd.Stderr = io.MultiWriter(r.log, &printed)
	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	builds := read(events, func(p *pkg) {
		r.say(p)
		done(p)
	})
	if err := cmd.Wait(); err != nil {
		return builds, fmt.Errorf("%s%w", &printed, err)
	}
	return builds, nil
}

// say prints a line of progress.
func (r *runner) say(line ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintln(r.out, line...)
}

func split(args []string) (flags, packages []string) {
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") {
			flags = append(flags, arg)
		} else {
			packages = append(packages, arg)
		}
	}
	return flags, packages
}

// count counts the tests of a package that passed and that were skipped.
func (r *runner) count(p *pkg) {
	r.passed += len(p.having("pass"))
	r.skipped += len(p.having("skip"))
}

func (r *runner) fail(what, why string) {
	r.failed++
	r.failures = append(r.failures, failure{false, what, why})
}

func (r *runner) flaky(what, why string) {
	r.failures = append(r.failures, failure{true, what, why})
}

// String is the line of a package that has ended.
func (p *pkg) String() string {
	switch {
	case p.failedBuild != "":
		return fmt.Sprintf("FAIL %s does not build", p.name)
	case p.result == "fail":
		return fmt.Sprintf("FAIL %s %.1fs %v", p.name, p.elapsed, p.having("fail"))
	case p.result == "skip":
		return fmt.Sprintf("ok   %s has no tests", p.name)
	}
	return fmt.Sprintf("ok   %s %.1fs", p.name, p.elapsed)
}

// summary says what failed and how, flaky tests first, and ends with the counts.
func (r *runner) summary() string {
	var text strings.Builder
	for _, flaky := range []bool{true, false} {
		for _, f := range r.failures {
			if f.flaky != flaky {
				continue
			}
			word := "FAIL"
			if flaky {
				word = "FLAKY"
			}
			fmt.Fprintf(&text, "\n%s %s\n%s", word, f.what, indent(f.why))
		}
	}
	fmt.Fprintf(&text, "\n%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	return text.String()
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("    " + strings.TrimSuffix(line, "\n") + "\n")
	}
	return b.String()
}
