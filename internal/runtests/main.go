// Runtests runs the tests of several modules and says at the end what failed.
// "make test" uses it, in the root of the repository:
//
//	go run ./internal/runtests '-race -p=2 ./...' '-C=examples -race -p=2 ./...'
//
// Each argument is a command line of go test: flags, with their values after "=", and
// packages. Besides the flags of go test there is -with=WORD: it stands for the tests that
// use the identifier WORD or that are only built with the tag WORD, and for their packages.
// Two commands run at a time, in the order of the arguments, and each runs even if one
// before it failed. Runtests prints a line when a package ends. The output of a failed test
// follows it, and stands in the summary again; of a long one, the first and the last lines.
// The output of tests that passed and the log lines of go-redis are left out.
//
// A test that fails has failed. It runs again once, while the others go on, so that the
// summary can say whether it fails always; that it passed then forgives nothing. Of a test of
// which one subtest failed, that one runs again. A line of the summary that begins with "Alone:"
// is the command that runs the same. A package in which something else failed (it does not
// build, a panic or a timeout ended the process, the race detector reported outside of a test)
// does not run again.
//
// A command that runs no test is a failure too: a -run that matches nothing, or a test
// found by -with that is not there.
//
// The argument -times=FILE has the seconds of every package and test written into that file.
// The ten tests that took longest are named before the summary. The argument -table=FILE has
// such a file printed as a Markdown table, and runs nothing.
//
// The last line counts tests without their subtests: "N passed, N failed, N skipped". A package
// that does not build, or failed as a whole, counts as one failed test. The exit status is 1 if
// any failed.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	r := runner{out: os.Stdout, log: os.Stderr, environ: os.Environ()}
	var commands [][]string
	times := ""
	for _, arg := range os.Args[1:] {
		switch name, value, _ := strings.Cut(arg, "="); name {
		case "-table":
			printTable(value)
			return
		case "-times":
			times = value
		default:
			commands = append(commands, strings.Fields(arg))
		}
	}
	r.run(commands...)
	if times != "" {
		if err := writeTimes(times, r.times); err != nil {
			r.fail("the times of the tests", err.Error()+"\n")
		}
	}
	fmt.Print(r.slowest(), r.summary())
	if r.failed > 0 {
		os.Exit(1)
	}
}

// printTable prints the table of times that an earlier run has written.
func printTable(name string) {
	times, err := readTimes(name)
	if err != nil {
		fmt.Fprintln(os.Stderr, "make test writes the times:", err)
		os.Exit(1)
	}
	fmt.Print(table(times))
}
