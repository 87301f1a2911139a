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
// summary can say whether it fails always; that it passed then forgives nothing. Only
// failures of the tests in known.go are forgiven. A package in which something else failed
// (it does not build, a panic or a timeout ended the process, the race detector reported
// outside of a test) does not run again.
//
// A command that runs no test is a failure too: a -run that matches nothing, or a test
// found by -with that is not there.
//
// The last line counts tests without their subtests: "N passed, N failed, N skipped", and
// "N forgiven" if there are any. A package that does not build, or failed as a whole,
// counts as one failed test. The exit status is 1 if any failed.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	if err := check(".", known); err != nil {
		fmt.Fprintln(os.Stderr, "internal/runtests/known.go:", err)
		os.Exit(1)
	}
	r := runner{out: os.Stdout, log: os.Stderr, known: known}
	var commands [][]string
	for _, command := range os.Args[1:] {
		commands = append(commands, strings.Fields(command))
	}
	r.run(commands...)
	fmt.Print(r.summary())
	if r.failed > 0 {
		os.Exit(1)
	}
}
