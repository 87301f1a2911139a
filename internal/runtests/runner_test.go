package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// The module in testdata/tiny has a package for each fate.
func TestAModuleWithFailuresOfEveryKind(t *testing.T) {
	t.Setenv("TINY_DIR", t.TempDir())
	t.Setenv("GOWORK", "off")
	var progress strings.Builder
	r := runner{out: &progress, log: t.Output()}
	r.run([]string{"-C=testdata/tiny", "-count=1", "./..."})
	r.run([]string{"-C=testdata/tiny", "-count=1", "-run=Passes", "./passes"}) // in spite of what failed

	for line, times := range map[string]int{
		"-- go test -C=testdata/tiny -count=1 ./...":                  1,
		"ok   example.com/tiny/passes":                                2,
		"FAIL example.com/tiny/fails .* [TestFails]":                  3,
		"FAIL example.com/tiny/nobuild does not build":                1,
		"FAIL example.com/tiny/flaky .* [TestFlaky]":                  1,
		"ok   example.com/tiny/flaky":                                 1,
		"FAIL example.com/tiny/panics .*":                             3,
		"-count=1 -run=^TestFails$ example.com/tiny/fails":            2,
		"FAIL example.com/tiny/panicsonce .* [TestPanicsOnce]":        1,
		"ok   example.com/tiny/panicsonce":                            1,
		"nobody needs to read this":                                   0,
		"-- go test -C=testdata/tiny -count=1 -run=Passes ./passes\n": 1,
	} {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(line), `\.\*`, ".*")
		if got := regexp.MustCompile(pattern).FindAllString(progress.String(), -1); len(got) != times {
			t.Errorf("want %q %d times in the progress, got %d times", line, times, len(got))
		}
	}
	const want = `
FLAKY example.com/tiny/flaky TestFlaky
        flaky_test.go:13: as it does the first time
    --- FAIL: TestFlaky (0.00s)

FLAKY example.com/tiny/panicsonce (the whole package)
    …
FAIL example.com/tiny/fails TestFails
        fails_test.go:11: as it always does
    --- FAIL: TestFails/failing (0.00s)
    --- FAIL: TestFails (0.00s)

FAIL example.com/tiny/nobuild does not build
    # example.com/tiny/nobuild [example.com/tiny/nobuild.test]
    nobuild/nobuild_test.go:5:31: undefined: undefined

FAIL example.com/tiny/panics (the whole package)
    …
8 passed, 3 failed, 1 skipped
`
	stacks := regexp.MustCompile(`(whole package\)\n    )(?s:.*?)\n\n(FAIL|\d)`)
	if got := stacks.ReplaceAllString(regexp.MustCompile(`\d\.\d\ds`).ReplaceAllString(r.summary(), "0.00s"), "$1…\n$2"); got != want {
		t.Errorf("want the summary%sgot%sof the progress\n%s", want, got, &progress)
	}
}

func TestGoTestThatCannotBeginIsAFailure(t *testing.T) {
	var progress strings.Builder
	r := runner{out: &progress, log: t.Output()}
	r.run([]string{"-C=testdata/nowhere", "./..."})
	if r.failed != 1 || !strings.Contains(r.summary(), "no such file or directory") {
		t.Errorf("want one failure that says why, got %s", r.summary())
	}
}

// Without the limit a missing server would make all tests run three times.
func TestNothingRunsAgainIfTooMuchFails(t *testing.T) {
	p := &pkg{name: "p", result: "fail", exited: true, results: map[string]string{}}
	for i := range tooManyToRepeat + 1 {
		p.add(event{Action: "run", Test: fmt.Sprintf("Test%d", i)})
		p.add(event{Action: "fail", Test: fmt.Sprintf("Test%d", i)})
	}
	var progress strings.Builder
	r := runner{out: &progress, log: t.Output()}
	r.settle(nil, []*pkg{p}, nil)
	if r.failed != tooManyToRepeat+1 || strings.Contains(progress.String(), "go test") {
		t.Errorf("want %d failures and nothing run, got %d and %s", tooManyToRepeat+1, r.failed, &progress)
	}
}
