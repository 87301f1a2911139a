package main

import (
	"fmt"
	"os"
	"path/filepath"
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
	r.run([]string{"-C=testdata/tiny", "./..."}, []string{"-C=testdata/tiny", "-run=Passes", "./passes"}) // the second in spite of what failed

	for text, times := range map[string]int{
		"-- go test -C=testdata/tiny ./...":                             1,
		"ok   example.com/tiny/passes":                                  2,
		"FAIL example.com/tiny/fails .* [TestFails]":                    3,
		"FAIL example.com/tiny/nobuild does not build":                  1,
		"FAIL example.com/tiny/flaky .* [TestFlaky TestFailsThenSkips]": 1,
		"ok   example.com/tiny/flaky":                                   3,
		"FAIL example.com/tiny/panics .*":                               3,
		"-count=1 -run=^TestFails$ example.com/tiny/fails":              2,
		"FAIL example.com/tiny/panicsonce .* [TestPanicsOnce]":          1,
		"ok   example.com/tiny/panicsonce":                              1,
		"nobody needs to read this":                                     0,
		"-- go test -C=testdata/tiny -run=Passes ./passes\n":            1,
	} {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(text), `\.\*`, ".*")
		if got := regexp.MustCompile(pattern).FindAllString(progress.String(), -1); len(got) != times {
			t.Errorf("want %q %d times in the progress, got %d times", text, times, len(got))
		}
	}
	const want = `
FLAKY example.com/tiny/flaky TestFlaky
        flaky_test.go:10: as it does the first time
    --- FAIL: TestFlaky (0.00s)

FLAKY example.com/tiny/panicsonce (the whole package)
    …
FAIL example.com/tiny/fails TestFails
        fails_test.go:11: as it always does
    --- FAIL: TestFails/failing (0.00s)
    --- FAIL: TestFails (0.00s)

FAIL example.com/tiny/flaky TestFailsThenSkips
        flaky_test.go:17: as it does the first time
    --- FAIL: TestFailsThenSkips (0.00s)

FAIL example.com/tiny/nobuild does not build
    # example.com/tiny/nobuild [example.com/tiny/nobuild.test]
    nobuild/nobuild_test.go:5:31: undefined: undefined

FAIL example.com/tiny/panics (the whole package)
    …
8 passed, 4 failed, 1 skipped
`
	if got := withoutStacks(r.summary()); got != want {
		t.Errorf("want the summary%sgot%sof the progress\n%s", want, got, &progress)
	}
}

// withoutStacks leaves out what differs from run to run.
func withoutStacks(summary string) string {
	summary = regexp.MustCompile(`\d\.\d\ds`).ReplaceAllString(summary, "0.00s")
	return regexp.MustCompile(`(whole package\)\n    )(?s:.*?)\n\n(FAIL|\d)`).ReplaceAllString(summary, "$1…\n$2")
}

func TestGoTestThatCannotBeginIsAFailure(t *testing.T) {
	var progress strings.Builder
	r := runner{out: &progress, log: t.Output()}
	r.run([]string{"-C=testdata/nowhere", "./..."})
	if r.failed != 1 || !strings.Contains(r.summary(), "no such file or directory") {
		t.Errorf("want one failure that says why, got %s", r.summary())
	}
}

// The packages that it did not come to would be lost: what it had reported passes when
// it runs again.
func TestGoTestThatIsKilledIsAFailure(t *testing.T) {
	bin := t.TempDir()
	const script = `#!/bin/sh
case "$*" in *-count=1*) echo '{"Action":"pass","Package":"p"}'; exit 0;; esac
echo '{"Action":"fail","Package":"p"}'
kill -9 $$
`
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	var progress strings.Builder
	r := runner{out: &progress, log: t.Output()}
	r.run([]string{"./..."})
	if r.failed != 1 || !strings.Contains(r.summary(), "FAIL go test ./...\n    signal: killed") {
		t.Errorf("want go test itself as the only failure, got %s", r.summary())
	}
}

// The second begins while the first runs, and what failed in one of them runs again when
// the other has ended.
func TestTwoCommandsRunAtATimeAndAFailedTestAlone(t *testing.T) {
	bin := t.TempDir()
	const script = `#!/bin/sh
cd "${0%/*}"
until_there() { for i in $(seq 1000); do [ -e "$1" ] && return; sleep 0.01; done; exit 1; }
case "$*" in
*-count=1*) [ -e second.ended ] && echo '{"Action":"pass","Package":"p"}';;
*first) until_there second; echo '{"Action":"fail","Package":"p"}'; touch first.ended; exit 1;;
*second) touch second; until_there first.ended; sleep 0.2; touch second.ended;;
esac
`
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	r := runner{out: t.Output(), log: t.Output()}
	r.run([]string{"first"}, []string{"second"})
	if len(r.failures) != 1 || !r.failures[0].flaky {
		t.Errorf("want one package that passes when it runs again, got %s", r.summary())
	}
}

func TestABuildThatFailsIsPrintedOnce(t *testing.T) {
	r := runner{out: t.Output()}
	r.settle(nil, []*pkg{
		{name: "p", result: "fail", failedBuild: "dep"},
		{name: "q", result: "fail", failedBuild: "dep"},
	}, map[string]string{"dep": "undefined: x\n"})
	const want = `
FAIL p does not build
    undefined: x

FAIL q does not build
    for the reason above: dep

0 passed, 2 failed, 0 skipped
`
	if got := r.summary(); got != want {
		t.Errorf("want %s, got %s", want, got)
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
