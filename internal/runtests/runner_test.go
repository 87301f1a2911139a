package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The module in testdata/tiny has a package for each fate. A test that fails once has
// failed: one that passed when it ran again used to count as passed.
func TestAModuleWithFailuresOfEveryKind(t *testing.T) {
	t.Setenv("TINY_DIR", t.TempDir())
	t.Setenv("GOWORK", "off")
	var progress strings.Builder
	r := runner{out: &progress, log: t.Output()}
	r.run([]string{"-C=testdata/tiny", "./..."}, []string{"-C=testdata/tiny", "-run=Passes", "./passes"}) // the second in spite of what failed

	for text, times := range map[string]int{
		"-- go test -C=testdata/tiny ./...":                             1,
		"ok   example.com/tiny/passes":                                  2,
		"FAIL example.com/tiny/fails .* [TestFails]":                    2,
		"FAIL example.com/tiny/nobuild does not build":                  1,
		"FAIL example.com/tiny/flaky .* [TestFlaky TestFailsThenSkips]": 1,
		"ok   example.com/tiny/flaky":                                   2,
		"FAIL example.com/tiny/panics .*":                               1,
		"-count=1 -run=^TestFails$/^failing$ example.com/tiny/fails":    1,
		"nobody needs to read this":                                     0,
		"    fails_test.go:11: as it always does\n":                     2, // and once more when it runs again
		"-- go test -C=testdata/tiny -run=Passes ./passes\n":            1,
	} {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(text), `\.\*`, ".*")
		if got := regexp.MustCompile(pattern).FindAllString(progress.String(), -1); len(got) != times {
			t.Errorf("want %q %d times in the progress, got %d times", text, times, len(got))
		}
	}
	const want = `
FAIL example.com/tiny/fails TestFails
        fails_test.go:11: as it always does
    --- FAIL: TestFails/failing (0.00s)
    --- FAIL: TestFails (0.00s)
    When it ran again: it failed.
    Alone: go test -C=testdata/tiny -count=1 '-run=^TestFails$/^failing$' example.com/tiny/fails

FAIL example.com/tiny/flaky TestFlaky
        flaky_test.go:10: as it does the first time
    --- FAIL: TestFlaky (0.00s)
    When it ran again: it passed.
    Alone: go test -C=testdata/tiny -count=1 '-run=^TestFlaky$' example.com/tiny/flaky

FAIL example.com/tiny/flaky TestFailsThenSkips
        flaky_test.go:17: as it does the first time
    --- FAIL: TestFailsThenSkips (0.00s)
    When it ran again: it was skipped.
    Alone: go test -C=testdata/tiny -count=1 '-run=^TestFailsThenSkips$' example.com/tiny/flaky

FAIL example.com/tiny/nobuild does not build
    # example.com/tiny/nobuild [example.com/tiny/nobuild.test]
    nobuild/nobuild_test.go:5:31: undefined: undefined

FAIL example.com/tiny/panics (the whole package)
    …
    Alone: go test -C=testdata/tiny -count=1 '-run=^TestPanics$' example.com/tiny/panics

8 passed, 5 failed, 1 skipped
`
	if got := withoutStacks(r.summary()); got != want {
		t.Errorf("want the summary%sgot%sof the progress\n%s", want, got, &progress)
	}
}

// withoutStacks leaves out what differs from run to run.
func withoutStacks(summary string) string {
	summary = regexp.MustCompile(`\d\.\d\ds`).ReplaceAllString(summary, "0.00s")
	return regexp.MustCompile(`(whole package\)\n    )(?s:.*?)\n    Alone`).ReplaceAllString(summary, "$1…\n    Alone")
}

// The first line of a panic says what it is, and the stacks of all goroutines follow.
func TestOfALongOutputTheFirstAndTheLastLinesStay(t *testing.T) {
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "line %d\n", i)
	}
	r := runner{out: t.Output()}
	r.fail("p TestA", text.String())
	got := r.summary()
	for _, want := range []string{"    line 0\n", "    line 59\n    … 880 lines …\n    line 940\n", "    line 999\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
	if short := strings.Repeat("line\n", firstLines+lastLines); bounded(short) != short {
		t.Error("what is short stays as it is")
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

// The packages that it did not come to would be lost.
func TestGoTestThatIsKilledIsAFailure(t *testing.T) {
	bin := t.TempDir()
	const script = `#!/bin/sh
echo '{"Action":"pass","Package":"p"}'
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

// The second begins while the first runs, and what failed in the first runs again before
// the second ends: alone, it would not meet what made it fail.
func TestTwoCommandsRunAtATimeAndAFailedTestAgainBesideThem(t *testing.T) {
	bin := t.TempDir()
	const script = `#!/bin/sh
cd "${0%/*}"
until_there() { for i in $(seq 1000); do [ -e "$1" ] && return; sleep 0.01; done; exit 1; }
ran() { printf '%s\n' '{"Action":"run","Package":"p","Test":"TestA"}' '{"Action":"'$1'","Package":"p","Test":"TestA"}' \
	'{"Action":"output","Package":"p","Output":"FAIL\n"}' '{"Action":"'$1'","Package":"p"}'; }
case "$*" in
*-count=1*) ran pass; touch again;;
*first) until_there second; ran fail; exit 1;;
*second) touch second; until_there again; ran pass;;
esac
`
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	r := runner{out: t.Output(), log: t.Output()}
	r.run([]string{"first"}, []string{"second"})
	const want = "\nFAIL p TestA\n    When it ran again: it passed.\n    Alone: go test -count=1 '-run=^TestA$' p\n\n1 passed, 1 failed, 0 skipped\n"
	if got := r.summary(); got != want {
		t.Errorf("want %sgot %s", want, got)
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

// Without the limit a missing server would make all tests run twice.
func TestNothingRunsAgainIfTooMuchFails(t *testing.T) {
	p := &pkg{name: "p", result: "fail", exited: true, results: map[string]string{}}
	for i := range maxAgain + 1 {
		p.add(event{Action: "run", Test: fmt.Sprintf("Test%d", i)})
		p.add(event{Action: "fail", Test: fmt.Sprintf("Test%d", i)})
	}
	var progress strings.Builder
	r := runner{out: &progress, log: t.Output()}
	r.repeat(nil, p)
	r.again.running.Wait()
	r.settle(nil, []*pkg{p}, nil)
	if r.failed != maxAgain+1 || strings.Contains(progress.String(), "go test") {
		t.Errorf("want %d failures and nothing run, got %d and %s", maxAgain+1, r.failed, &progress)
	}
}

// A pattern that matches nothing used to pass: the tests that it was made for did not run.
func TestACommandThatRunsNoTestIsAFailure(t *testing.T) {
	t.Setenv("GOWORK", "off")
	for _, args := range [][]string{
		{"-C=testdata/tiny", "-run=^()$", "./passes", "./fails"},
		{"-C=testdata/tiny", "-run=TestOfAnotherName", "./passes"},
	} {
		r := runner{out: t.Output(), log: t.Output()}
		r.run(args)
		if r.failed != 1 || !strings.Contains(r.summary(), "FAIL go test "+strings.Join(args, " ")+"\n    no test ran\n") {
			t.Errorf("want one failure that says so, got %s", r.summary())
		}
	}
}

func TestWithFindsTheTestsThatUseAWordOrNeedATag(t *testing.T) {
	t.Chdir("testdata/tiny")
	t.Setenv("GOWORK", "off")
	for _, of := range []struct {
		args   []string
		passed int
		says   string
	}{
		{[]string{"-with=word"}, 1, "-- go test -run=^(TestUsesTheWord)$ ./select\n"},
		{[]string{"-tags=tagged", "./passes", "-with=tagged"}, 2, "-- go test -tags=tagged -run=^(TestIsOnlyThereWithATag|Example)$ ./passes ./select\n"},
		{[]string{"-with=tagged"}, 0, "    no test ran\n"},
		{[]string{"-with=wort"}, 0, "    no test has wort\n"},
		{[]string{"-with=word", "-run=DoesNot"}, 1, "    TestUsesTheWord did not run\n"},
	} {
		var progress strings.Builder
		r := runner{out: &progress, log: t.Output()}
		r.run(of.args)
		if got := progress.String() + r.summary(); r.passed != of.passed || !strings.Contains(got, of.says) {
			t.Errorf("want of %q %d passed and %q, got %s", of.args, of.passed, of.says, got)
		}
	}
}
