package main

import "sync"

// After so many failed tests no more run again: a server that is missing, say, fails all
// of them.
const maxAgain = 20

// An again is what runs failed tests again, one at a time.
type again struct {
	running sync.WaitGroup
	turn    sync.Mutex // held while a test runs again

	mu      sync.Mutex // guards what follows
	tests   int        // that ran or wait to run
	results map[string]string
}

// repeat runs failed tests of a package again, one after the other, in the background:
// what else runs is the load under which they failed.
func (r *runner) repeat(flags []string, p *pkg) {
	a, tests := &r.again, p.failedTests()
	a.mu.Lock()
	a.tests += len(tests)
	tooMany := a.tests > maxAgain
	a.mu.Unlock()
	if len(tests) == 0 || tooMany {
		return
	}
	a.running.Go(func() {
		for _, test := range tests {
			a.turn.Lock()
			result := r.once(only(flags, []string{p.narrowest(test)}), p.name, test)
			a.turn.Unlock()
			a.mu.Lock()
			if a.results == nil {
				a.results = map[string]string{}
			}
			a.results[p.name+" "+test] = result
			a.mu.Unlock()
		}
	})
}

// once runs one test and returns its result.
func (r *runner) once(flags []string, name, test string) string {
	result := "it did not run"
	_, _ = r.goTest(flags, []string{name}, func(p *pkg) {
		switch {
		case p.result == "fail":
			result = "it failed"
		case p.results[test] == "pass":
			result = "it passed"
		case p.results[test] == "skip":
			result = "it was skipped"
		}
	})
	return result
}
