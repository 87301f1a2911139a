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

// A runner runs commands and remembers what failed in them.
type runner struct {
	mu      sync.Mutex // guards out
	out     io.Writer  // progress
	log     io.Writer  // what go itself prints to its standard error, such as downloads; written to concurrently
	environ []string   // the environment, of which the line that runs a test alone repeats what is ours

	again again

	passed, failed, skipped int
	failures                []failure
	times                   []timed
}

type failure struct {
	what string // package and test
	why  string // the output
}

// An outcome is what came of a command.
type outcome struct {
	command
	ended  []*pkg
	builds map[string]string // what they printed, by import path
	err    error
}

// run runs go test with each of these arguments, and what fails again beside the others.
func (r *runner) run(commands ...[]string) {
	outcomes := make([]outcome, len(commands))
	var running errgroup.Group
	running.SetLimit(atATime)
	for i, args := range commands {
		running.Go(func() error {
			o := &outcomes[i]
			if o.command, o.err = parse(".", args); o.err != nil {
				return nil
			}
			o.builds, o.err = r.goTest(o.flags, o.packages, func(p *pkg) {
				o.ended = append(o.ended, p)
				r.repeat(o.flags, p)
			})
			return nil
		})
	}
	_ = running.Wait()
	r.again.running.Wait()
	for i, args := range commands {
		o := outcomes[i]
		failed := r.settle(o.flags, o.ended, o.builds)
		var exit *exec.ExitError
		explained := failed > 0 && errors.As(o.err, &exit) && exit.ExitCode() == 1
		what := "go test " + strings.Join(args, " ")
		if o.err != nil && !explained { // go test could not begin, or was killed
			r.fail(what, o.err.Error()+"\n")
		} else if missing := o.missing(); failed == 0 && missing != "" {
			r.fail(what, missing+"\n")
		}
	}
}

// missing says which tests should have run and did not.
func (o *outcome) missing() string {
	var ran []string
	for _, p := range o.ended {
		ran = append(ran, p.tests...)
	}
	if len(ran) == 0 {
		return "no test ran"
	}
	for _, test := range o.tests {
		if !slices.Contains(ran, test) {
			return test + " did not run"
		}
	}
	return ""
}

// settle counts the tests of packages that ran with flags, and returns how many tests and packages failed.
func (r *runner) settle(flags []string, ended []*pkg, builds map[string]string) (failed int) {
	slices.SortFunc(ended, func(a, b *pkg) int { return strings.Compare(a.name, b.name) })
	for _, p := range ended {
		tests := p.failedTests()
		r.passed += len(p.having("pass"))
		r.skipped += len(p.having("skip"))
		r.times = append(r.times, p.times...)
		if p.result == "fail" {
			failed += max(1, len(tests))
		}
		switch {
		case p.failedBuild != "":
			r.fail(p.name+" does not build", builds[p.failedBuild])
			builds[p.failedBuild] = "for the reason above: " + p.failedBuild + "\n"
		case p.result == "fail" && len(tests) == 0:
			r.fail(p.name+" (the whole package)", p.why("")+r.alone(flags, p, p.suspects()...))
		default:
			for _, test := range tests {
				r.settleTest(flags, p, test)
			}
		}
	}
	return failed
}

// settleTest records a failed test.
func (r *runner) settleTest(flags []string, p *pkg, test string) {
	what, why := p.name+" "+test, p.why(test)
	if result := r.again.results[what]; result != "" {
		why += "When it ran again: " + result + ".\n"
	}
	why += r.alone(flags, p, p.narrowest(test))
	r.fail(what, why)
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
		r.sayWhy(p)
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

// sayWhy prints how the tests of a package failed, for a run that is ended before its summary.
func (r *runner) sayWhy(p *pkg) {
	if p.result != "fail" || p.failedBuild != "" {
		return
	}
	tests := p.failedTests()
	if tests == nil {
		tests = []string{""} // the whole package
	}
	for _, test := range tests[:min(len(tests), maxAgain)] {
		r.say(strings.TrimSuffix(indent(bounded(p.why(test))), "\n"))
	}
}

func (r *runner) fail(what, why string) {
	r.failed++
	r.failures = append(r.failures, failure{what, why})
}

// alone is the line that says how tests of a package run alone, or the package if there are none.
func (r *runner) alone(flags []string, p *pkg, tests ...string) string {
	return "Alone: " + alone(r.environ, flags, p.name, tests) + "\n"
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
	case p.cached:
		return fmt.Sprintf("ok   %s (cached)", p.name)
	}
	return fmt.Sprintf("ok   %s %.1fs", p.name, p.elapsed)
}

// summary says what failed and how, and ends with the counts.
func (r *runner) summary() string {
	var text strings.Builder
	for _, f := range r.failures {
		fmt.Fprintf(&text, "\nFAIL %s\n%s", f.what, indent(bounded(f.why)))
	}
	fmt.Fprintf(&text, "\n%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	return text.String()
}

// A failure says first what happened, such as a panic, and last what came of it; between
// them may stand the stacks of thousands of goroutines.
const firstLines, lastLines = 60, 60

// bounded leaves out what lies between the first and the last lines of a long text.
func bounded(text string) string {
	lines := slices.Collect(strings.Lines(text))
	left := len(lines) - firstLines - lastLines
	if left <= 0 {
		return text
	}
	return strings.Join(lines[:firstLines], "") + fmt.Sprintf("… %d lines …\n", left) + strings.Join(lines[firstLines+left:], "")
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("    " + strings.TrimSuffix(line, "\n") + "\n")
	}
	return b.String()
}
