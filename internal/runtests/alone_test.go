package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestTheLineThatRunsATestAlone(t *testing.T) {
	for _, of := range []struct {
		environ, flags, tests []string
		want                  string
	}{
		{nil, []string{"-race", "-timeout=30m"}, []string{"TestA"},
			"go test -race -timeout=30m -count=1 '-run=^TestA$' p"},
		{nil, []string{"-C=cache/pgfeed", "-race", "-count=3", "-run=A|B"}, []string{"TestA"},
			"go test -C=cache/pgfeed -race -count=1 '-run=^TestA$' p"},
		{nil, nil, []string{"TestA/of_(a|b)/it's_1.5"},
			`go test -count=1 '-run=^TestA$/^of_\(a\|b\)$/^it'\''s_1\.5$' p`},
		{nil, []string{"-run=A"}, nil, "go test -run=A -count=1 p"},
		{nil, []string{"-run=A"}, []string{"TestA", "TestAB"}, "go test -count=1 '-run=^(TestA|TestAB)$' p"},
		{[]string{"HOME=/", "LEVEE_REDIS_SERVER=redis-server", "LEVEE_LONG=1"}, nil, nil, "LEVEE_LONG=1 go test -count=1 p"},
		{[]string{"LEVEE_REDIS_SERVER=/a b"}, nil, nil, "LEVEE_REDIS_SERVER='/a b' go test -count=1 p"},
	} {
		if got := alone(of.environ, of.flags, "p", of.tests); got != of.want {
			t.Errorf("want %s, got %s", of.want, got)
		}
	}
}

// A name that a shell or go test's pattern reads otherwise would run nothing, or more.
func TestTheLineRunsTheSubtestThatFailed(t *testing.T) {
	t.Setenv("GOWORK", "off")
	line := alone(nil, []string{"-C=testdata/tiny", "-v"}, "example.com/tiny/names", []string{"TestOfNames/it's_(a|b)/c$"})
	sh := exec.Command("sh", "-c", line)
	printed, err := sh.CombinedOutput()
	if err != nil || !strings.Contains(string(printed), "--- PASS: TestOfNames/it's_(a|b)/c$ ") || strings.Contains(string(printed), "not_this") {
		t.Errorf("want of %s the one subtest, got %v and\n%s", line, err, printed)
	}
}

func TestTheNarrowestTestHasAllThatFailed(t *testing.T) {
	for _, of := range []struct {
		failed []string
		want   string
	}{
		{[]string{"TestA"}, "TestA"},
		{[]string{"TestA", "TestA/b", "TestA/b/c", "TestAB/b"}, "TestA/b/c"},
		{[]string{"TestA", "TestA/b", "TestA/b/c", "TestA/b/d"}, "TestA/b"},
		{[]string{"TestA", "TestA/b", "TestA/b/c", "TestA/d"}, "TestA"},
		{[]string{"TestA", "TestA/b", "TestA/bc"}, "TestA"},
		{[]string{"TestA", "TestA/b/c"}, "TestA/b/c"}, // one subtest with a slash in its name
	} {
		p := pkg{results: map[string]string{}}
		for _, name := range slices.Concat(of.failed, []string{"TestA/e"}) {
			p.add(event{Action: "run", Test: name})
			p.add(event{Action: "fail", Test: name})
		}
		p.results["TestA/e"] = "pass"
		if got := p.narrowest("TestA"); got != of.want {
			t.Errorf("want of %q %s, got %s", of.failed, of.want, got)
		}
	}
}

func TestAPackageThatAPanicEndedIsRunForTheTestsThatItEnded(t *testing.T) {
	for name, want := range map[string][]string{
		"a test panics":  {"TestA"},
		"time is up":     {"TestA", "TestB"},
		"TestMain fails": nil,
		"a race outside of the tests, and a failed test": nil,
	} {
		if p, _ := readOne(t, streams[name]); !slices.Equal(p.suspects(), want) {
			t.Errorf("%s: want %q, got %q", name, want, p.suspects())
		}
	}
}
