// Runtests runs the tests of several modules and says at the end what failed.
// "make test" uses it:
//
//	go run ./internal/runtests '-race -p=2 ./...' '-C=examples -race -p=2 ./...'
//
// Each argument is a command line of go test: flags, with their values after "=", and
// packages. Two commands run at a time, in the order of the arguments, and each runs even
// if one before it failed. Runtests prints a line when a package ends, and the output of a
// failed test in the summary only. The output of tests that passed and the log lines of
// go-redis are left out.
//
// When all commands have ended, a failed test runs again alone, at most twice. If it passes, the summary calls it
// FLAKY, prints how it failed, and counts it as passed. A package in which something
// else failed (a panic or a timeout ended the process, the race detector reported
// outside of a test) runs again as a whole, by the same rule. A package that does not
// build, or that vet rejects, does not run again.
//
// The last line counts tests without their subtests: "N passed, N failed, N skipped". A
// package that does not build, or failed as a whole, counts as one failed test. The
// exit status is 1 if any failed.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	r := runner{out: os.Stdout, log: os.Stderr}
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
