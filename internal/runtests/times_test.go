package main

import (
	"fmt"
	"os"
	"path/filepath"
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
