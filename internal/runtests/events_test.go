package main

import (
	"slices"
	"strings"
	"testing"
)

// These are shortened event streams of Go 1.26, one for each way to fail.
var streams = map[string]string{
	"two tests fail": `
{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"run","Package":"p","Test":"TestA/good"}
{"Action":"output","Package":"p","Test":"TestA/good","Output":"    a_test.go:1: good\n"}
{"Action":"pass","Package":"p","Test":"TestA/good"}
{"Action":"run","Package":"p","Test":"TestA/bad"}
{"Action":"output","Package":"p","Test":"TestA/bad","Output":"redis: 2026/11/22 08:00:00 pool.go:1: failed to dial\n"}
{"Action":"output","Package":"p","Test":"TestA/bad","Output":"    a_test.go:2: bad\n"}
{"Action":"fail","Package":"p","Test":"TestA/bad"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestAB"}
{"Action":"output","Package":"p","Test":"TestAB","Output":"    a_test.go:3: another\n"}
{"Action":"fail","Package":"p","Test":"TestAB"}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.012s\n"}
{"Action":"fail","Package":"p","Elapsed":0.013}
`,
	"a test panics": `
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: boom [recovered, repanicked]\n"}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.016s\n"}
{"Action":"fail","Package":"p","Elapsed":0.017}
`,
	"time is up": `
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: test timed out after 2s\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t2.018s\n"}
{"Action":"fail","Package":"p","Elapsed":2.018}
`,
	"a race outside of the tests, and a failed test": `
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"WARNING: DATA RACE\n"}
{"Action":"output","Package":"p","Output":"testing: race detected outside of test execution\n"}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"fail","Package":"p","Elapsed":0.013}
`,
	"TestMain fails": `
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"goleak: Errors on successful test run: found unexpected goroutines\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.012s\n"}
{"Action":"fail","Package":"p","Elapsed":0.013}
`,
}

func TestWhatFailedIsATestOrThePackage(t *testing.T) {
	for name, want := range map[string]struct {
		tests []string
		why   string
	}{
		"two tests fail": {[]string{"TestA", "TestAB"}, "    a_test.go:2: bad\n--- FAIL: TestA (0.00s)\n"},
		"a test panics":  {nil, "--- FAIL: TestA (0.00s)\npanic: boom [recovered, repanicked]\n"},
		"time is up": {nil, "panic: test timed out after 2s\n" +
			"The process ended before the end of TestA, TestB\n"},
		"a race outside of the tests, and a failed test": {nil, "--- FAIL: TestA (0.00s)\n" +
			"WARNING: DATA RACE\ntesting: race detected outside of test execution\n"},
		"TestMain fails": {nil, "PASS\ngoleak: Errors on successful test run: found unexpected goroutines\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := readOne(t, streams[name])
			if p.result != "fail" || !slices.Equal(p.failedTests(), want.tests) {
				t.Errorf("want a failure and the tests %q, got %q and %q", want.tests, p.result, p.failedTests())
			}
			first := ""
			if want.tests != nil {
				first = want.tests[0]
			}
			if why := p.why(first); why != want.why {
				t.Errorf("want the output\n%sgot\n%s", want.why, why)
			}
		})
	}
}

func TestABuildThatFailsIsNamed(t *testing.T) {
	p, builds := readOne(t, `
{"ImportPath":"dep","Action":"build-output","Output":"dep.go:5:36: undefined: x\n"}
{"ImportPath":"dep","Action":"build-fail"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"dep"}
`)
	if p.failedBuild != "dep" || builds["dep"] != "dep.go:5:36: undefined: x\n" {
		t.Errorf("want what the build of dep printed, got %q of %q", builds, p.failedBuild)
	}
}

func TestPackagesMayRunAtTheSameTime(t *testing.T) {
	var got []string
	read(strings.NewReader(`
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"q","Test":"TestA"}
this line is none of go test's
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"skip","Package":"q","Test":"TestA"}
{"Action":"skip","Package":"r"}
{"Action":"pass","Package":"q","Elapsed":2}
{"Action":"pass","Package":"p","Elapsed":3.14}
`), func(p *pkg) { got = append(got, p.String()) })
	want := []string{"ok   r has no tests", "ok   q 2.0s", "ok   p 3.1s"}
	if !slices.Equal(got, want) {
		t.Errorf("want %q, got %q", want, got)
	}
}

// readOne reads the events of one package.
func readOne(t *testing.T, events string) (*pkg, map[string]string) {
	var pkgs []*pkg
	builds := read(strings.NewReader(events), func(p *pkg) { pkgs = append(pkgs, p) })
	if len(pkgs) != 1 {
		t.Fatalf("want one package, got %v", pkgs)
	}
	return pkgs[0], builds
}
