package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTheTimesOfARun(t *testing.T) {
	const stream = `
{"Action":"run","Package":"github.com/levee-go/levee/p","Test":"TestA"}
{"Action":"run","Package":"github.com/levee-go/levee/p","Test":"TestA/sub"}
{"Action":"pass","Package":"github.com/levee-go/levee/p","Test":"TestA/sub","Elapsed":1.5}
{"Action":"pass","Package":"github.com/levee-go/levee/p","Test":"TestA","Elapsed":1.5}
{"Action":"run","Package":"github.com/levee-go/levee/p","Test":"TestB"}
{"Action":"skip","Package":"github.com/levee-go/levee/p","Test":"TestB","Elapsed":0.01}
{"Action":"pass","Package":"github.com/levee-go/levee/p","Elapsed":2.25}
{"Action":"run","Package":"q","Test":"TestC"}
{"Action":"pass","Package":"q","Test":"TestC","Elapsed":70}
{"Action":"output","Package":"q","Output":"ok  \tq\t(cached)\n"}
{"Action":"pass","Package":"q","Elapsed":0.1}
{"Action":"run","Package":"r","Test":"TestD"}
{"Action":"fail","Package":"r","Test":"TestD","Elapsed":12}
{"Action":"output","Package":"r","Output":"FAIL\n"}
{"Action":"fail","Package":"r","Elapsed":12.1}
{"Action":"skip","Package":"without tests"}
`
	r := runner{out: t.Output(), log: t.Output()}
	var ended []*pkg
	read(strings.NewReader(stream), func(p *pkg) { ended = append(ended, p) })
	r.settle(nil, ended, nil)

	const slowest = "\nThe slowest tests:\n    12.0 s  r TestD\n     1.5 s  p TestA\n     0.0 s  p TestB\n"
	if got := r.slowest(); got != slowest {
		t.Errorf("want %sgot %s", slowest, got)
	}
	name := filepath.Join(t.TempDir(), "bin", "times.tsv")
	if err := writeTimes(name, r.times); err != nil {
		t.Fatal(err)
	}
	const want = "github.com/levee-go/levee/p\tTestA\t1.500\tpass\ngithub.com/levee-go/levee/p\tTestB\t0.010\tskip\ngithub.com/levee-go/levee/p\t\t2.250\tpass\n" +
		"q\tTestC\t70.000\tcached\nq\t\t70.000\tcached\n" +
		"r\tTestD\t12.000\tfail\nr\t\t12.100\tfail\n"
	if got, err := os.ReadFile(name); err != nil || string(got) != want {
		t.Errorf("want\n%sgot %v\n%s", want, err, got)
	}
	if got, err := readTimes(name); err != nil || !slices.Equal(got, r.times) {
		t.Errorf("want %v read again, got %v, %v", r.times, got, err)
	}
}

func TestTenTestsAreTheSlowest(t *testing.T) {
	r := runner{}
	for n := range 30 {
		r.times = append(r.times, timed{"p", fmt.Sprintf("Test%d", n), float64(n * 17 % 30), "pass"})
	}
	lines := strings.Split(strings.TrimSpace(r.slowest()), "\n")
	if len(lines) != 11 || !strings.HasPrefix(lines[1], "    29.0 s") || !strings.HasPrefix(lines[10], "    20.0 s") {
		t.Errorf("want those of 29 to 20 seconds, got %q", lines)
	}
}

func TestTheTableOfTimes(t *testing.T) {
	for _, text := range []string{"p\tTestA\t1.000\n", "p\tTestA\ta\tpass\n"} {
		name := filepath.Join(t.TempDir(), "times.tsv")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if times, err := readTimes(name); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want an error of %q, got %v, %v", text, times, err)
		}
	}
	got := table([]timed{
		{"small", "TestA", 0.9, "pass"}, {"small", "", 1, "pass"}, {"smaller", "TestA", 0.1, "pass"}, {"smaller", "", 0.25, "pass"},
		{module + "lock", "TestA", 3, "pass"}, {module + "lock", "TestB", 4, "pass"}, {module + "lock", "TestC", 0.99, "pass"},
		{module + "lock", "", 8, "pass"}, {module + "lock", "TestA", 5, "pass"}, {module + "lock", "", 5.5, "pass"}, // ran twice
		{"cached", "TestA", 20, "cached"}, {"cached", "TestB", 2, "cached"}, {"cached", "TestC", 6, "cached"}, {"cached", "TestD", 4, "cached"}, {"cached", "", 32, "cached"},
	})
	const want = `| package | seconds | tests | the slowest |
|---|---:|---:|---|
| cached (cached) | 32 | 4 | TestA 20, TestC 6, TestD 4 |
| lock | 14 | 3 | TestA 5, TestB 4 |
| 2 others | 1 | 2 | |
| all | 47 | 9 | |
`
	if got != want {
		t.Errorf("want\n%sgot\n%s", want, got)
	}
}
