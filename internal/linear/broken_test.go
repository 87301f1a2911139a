package linear

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/levee-go/levee/internal/mutant"
	"github.com/levee-go/levee/internal/redistest"
)

// insistent is set in a mutant: there the test below is to go on until it finds the
// fault.
const insistent = "LEVEE_LINEAR_MUTANT"

// Many short histories find what is badly broken sooner than one long one: the worse a
// history is, the longer it takes to rule an order out.
func TestShortHistoriesAreLinearizable(t *testing.T) {
	histories := 2
	if os.Getenv(insistent) != "" {
		histories = 20
	}
	s := redistest.Start(t)
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			for range histories {
				history := record(t, kind, s.Addr(), calm, 300*time.Millisecond)
				if check(history, 500*time.Millisecond) == porcupine.Illegal {
					t.Fatal("not linearizable")
				}
				s.Client(t).FlushAll(t.Context())
			}
		})
	}
}

// These edits make the caches and groups of a mutant.
var (
	// A commit publishes whether or not its lease still stands, and an invalidation
	// takes no lease away.
	commitUnasked = []mutant.Edit{
		{File: "mutexrebuild/scripts/commit.lua", Old: "if redis.pcall('HGET', KEYS[2], 't') ~= ARGV[1] then", New: "if false then"},
		{File: "mutexrebuild/scripts/invalidate.lua", Old: "redis.call('DEL', KEYS[1], KEYS[2])", New: "redis.call('DEL', KEYS[1])"},
	}
	// A value that Redis refused to publish is an answer, instead of being loaded again.
	keepRefused = []mutant.Edit{
		{File: "cache/publish.go", Old: "case outcome.Err != nil || outcome.Published || j.refusals == maxRefusals:", New: "case true:"},
		{File: "mutexrebuild/rebuild.go", Old: "return data, outcome.Published || outcome.Err != nil, nil", New: "return data, true, nil"},
	}
	// A flight's result is for all who joined it, however late.
	joinAny = []mutant.Edit{
		{File: "internal/flight/flight.go", Old: "if number <= f.decidedAt {", New: "if true {"},
	}
	// Nobody can join a flight any more when its value is about to be published.
	leaveBeforeCommit = []mutant.Edit{
		{File: "internal/flight/flight.go", Old: "		delete(g.flights, f.ID)\n", New: "		f.leave()\n"},
		{File: "internal/flight/flight.go", Old: "// TakeBack goes back", New: `func (f *Flight[R]) Leave() {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.leave()
}

func (f *Flight[R]) leave() {
	if f.group.flights[f.ID] == f {
		delete(f.group.flights, f.ID)
	}
}

// TakeBack goes back`},
		{File: "cache/publish.go", Old: "		j.flight.Decide()\n	}\n	failpoint.At(\"commit\")", New: "		j.flight.Leave()\n	}\n	failpoint.At(\"commit\")"},
		{File: "mutexrebuild/rebuild.go", Old: "	f.Decide()\n	outcome :=", New: "	f.Leave()\n	outcome :="},
	}
)

// Each of these is the protocol with a safeguard left out, down to the recipe that
// everybody writes. If the histories could not tell them from the whole one, they would
// prove nothing.
func TestProtocolsWithoutTheirSafeguardsAreCaught(t *testing.T) {
	for _, test := range []struct {
		name  string
		edits [][]mutant.Edit
	}{
		{"a mutex that guards nothing but the load", [][]mutant.Edit{commitUnasked, joinAny}},
		{"a refused value is answered to everybody", [][]mutant.Edit{keepRefused, joinAny}},
		{"callers may join after the invalidation", [][]mutant.Edit{joinAny}},
		{"callers may join until the publication", [][]mutant.Edit{leaveBeforeCommit, joinAny}},
	} {
		t.Run(test.name, func(t *testing.T) {
			of := mutant.Of{Package: "./internal/linear", Test: "^TestShortHistoriesAreLinearizable$", Env: []string{insistent + "=1"}}
			for _, edits := range test.edits {
				of.Edits = append(of.Edits, edits...)
			}
			output, _ := mutant.Run(t, of)
			for _, kind := range kinds {
				if !strings.Contains(output, "--- FAIL: TestShortHistoriesAreLinearizable/"+kind) {
					t.Errorf("20 histories of the %s without a fault found", kind)
				}
			}
			if n := strings.Count(output, "not linearizable"); n != len(kinds) {
				t.Errorf("%d kinds are not linearizable, of %d:\n%s", n, len(kinds), output)
			}
		})
	}
}
