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
func TestShortHistoriesAreLinearizable(t *testing.T) { shortHistories(t, noOrder, kinds...) }

// noOrder reports whether a history is surely not linearizable.
func noOrder(history []op) bool {
	perKey := 500 * time.Millisecond
	if os.Getenv(insistent) != "" {
		perKey = 5 * time.Second // a busy machine must not take a broken history for one that it cannot judge
	}
	return check(history, perKey) == porcupine.Illegal
}

// insistence is how long a mutant looks for a fault in the histories of a kind. A calm
// machine finds it in the first or second. One that is starved has less in each history,
// and takes longer for it; with a number of histories in place of a time it came to the
// end of the mutant's ten minutes.
const insistence = 4 * time.Minute

func shortHistories(t *testing.T, wrong func([]op) bool, kinds ...string) {
	s := redistest.Start(t)
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			began := time.Now()
			for n := 0; n < 2 || os.Getenv(insistent) != "" && time.Since(began) < insistence; n++ {
				history := record(t, kind, s.Addr(), calm, 300*time.Millisecond)
				if wrong(history) {
					t.Fatal("not linearizable, or stale")
				}
				s.Client(t).FlushAll(t.Context())
			}
		})
	}
}

// A rolling deployment and its rollback, see TestNoReadIsStaleDuringADeployment.
func TestShortHistoriesOfTwoReleasesAreNotStale(t *testing.T) {
	shortHistories(t, func(history []op) bool { return len(stale(history)) > 0 }, "releases")
}

// The same with writers who clear the whole cache.
func TestShortHistoriesWithClearsAreLinearizable(t *testing.T) {
	shortHistories(t, noOrder, "clears")
}

// These edits make the caches and groups of a mutant.
var (
	// A commit publishes whether or not its lease still stands, and an invalidation
	// takes no lease away.
	commitUnasked = []mutant.Edit{
		{File: "mutexrebuild/scripts/commit.lua", Old: "if redis.pcall('HGET', KEYS[2], 't') ~= ARGV[1] then", New: "if false then"},
		{File: "mutexrebuild/scripts/invalidate.lua", Old: "redis.call('DEL', KEYS[2])", New: ""},
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
	// What was loaded beside a writer is shared whatever has happened since.
	shareUnasked = []mutant.Edit{
		{File: "mutexrebuild/scripts/share.lua", Old: "if right ~= ARGV[1] then", New: "if false then"},
	}
	// Nobody can join a flight any more when its value is about to be published.
	leaveBeforeCommit = []mutant.Edit{
		{File: "internal/flight/flight.go", Old: "		delete(g.flights, f.ID)\n", New: "		f.leaveEarly()\n"},
		{File: "internal/flight/flight.go", Old: "// TakeBack goes back", New: `func (f *Flight[R]) LeaveEarly() {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.leaveEarly()
}

func (f *Flight[R]) leaveEarly() {
	if f.group.flights[f.ID] == f {
		delete(f.group.flights, f.ID)
	}
}

// TakeBack goes back`},
		{File: "cache/publish.go", Old: "		j.flight.Decide()\n	}\n	failpoint.At(\"commit\")", New: "		j.flight.LeaveEarly()\n	}\n	failpoint.At(\"commit\")"},
		{File: "mutexrebuild/rebuild.go", Old: "	f.Decide()\n	outcome :=", New: "	f.LeaveEarly()\n	outcome :="},
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
		{"a load from before a write is shared beside the next", [][]mutant.Edit{shareUnasked}},
	} {
		t.Run(test.name, func(t *testing.T) {
			of := mutant.Of{Package: "./internal/linear", Test: "^TestShortHistoriesAreLinearizable$", Env: []string{insistent + "=1"}}
			for _, edits := range test.edits {
				of.Edits = append(of.Edits, edits...)
			}
			output, _ := mutant.Run(t, of)
			for _, kind := range kinds {
				if !strings.Contains(output, "--- FAIL: TestShortHistoriesAreLinearizable/"+kind) {
					t.Errorf("histories of the %s without a fault found", kind)
				}
			}
			if n := strings.Count(output, "not linearizable"); n != len(kinds) {
				t.Errorf("%d kinds are not linearizable, of %d:\n%s", n, len(kinds), output)
			}
		})
	}
}

// The same for what keeps two releases apart and together.
func TestReleasesThatDoNotMindEachOtherAreCaught(t *testing.T) {
	for name, edit := range map[string]mutant.Edit{
		"a write drops the values of its own schema": {
			File: "mutexrebuild/store.go",
			Old:  "append(s.keys(id), s.names.Value(s.space.Schema+1, id))\n	if s.space.Schema > 0 {",
			New:  "s.keys(id)\n	if false {",
		},
		"each schema has a lease": {
			File: "mutexrebuild/store.go",
			Old:  "{ return []string{s.key(id), s.names.Lease(id)} }",
			New:  "{ return []string{s.key(id), s.key(id) + \":lock\"} }",
		},
	} {
		t.Run(name, func(t *testing.T) {
			output, failed := mutant.Run(t, mutant.Of{
				Package: "./internal/linear", Test: "^TestShortHistoriesOfTwoReleasesAreNotStale$", Env: []string{insistent + "=1"},
				Edits: []mutant.Edit{edit},
			})
			if !failed || !strings.Contains(output, "not linearizable") {
				t.Errorf("histories without a fault found:\n%s", output)
			}
		})
	}
}

// The same for what a Clear stands on.
func TestClearsWithoutTheirSafeguardsAreCaught(t *testing.T) {
	for name, edit := range map[string]mutant.Edit{
		"a load from before a Clear is published for those who joined": {
			File: "cache/publish.go", Old: " && !c.cleared(j.loaded.entry): // else", New: ": // else",
		},
		"a value carries the epoch of the end of its load": {
			File: "cache/load.go", Old: "life: life{epoch: epoch}}\n	e.stamp", New: "life: life{epoch: c.fleet.LoadEpoch()}}\n	e.stamp",
		},
		"a value from Redis counts whatever its epoch": {
			File: "cache/rebuild.go", Old: "if c.cleared(e) {", New: "if false {",
		},
	} {
		t.Run(name, func(t *testing.T) {
			output, failed := mutant.Run(t, mutant.Of{
				Package: "./internal/linear", Test: "^TestShortHistoriesWithClearsAreLinearizable$", Env: []string{insistent + "=1"},
				Edits: []mutant.Edit{edit},
			})
			if !failed || !strings.Contains(output, "not linearizable") {
				t.Errorf("histories without a fault found:\n%s", output)
			}
		})
	}
}

// The same for a follower of a feed.
func TestAFollowerThatConfirmsTooEarlyIsCaught(t *testing.T) {
	const apply = "		if err := f.insist(ctx, func() error { return f.apply(ctx, batch) }); err != nil {\n			return err\n		}\n"
	m := mutant.Of{
		Package: "./internal/linear", Test: "^TestNoReadIsStaleThatTheFeedHasConfirmed$", Env: []string{insistent + "=1"},
		Edits: []mutant.Edit{
			{File: "cache/follow.go", Old: apply, New: ""},
			{File: "cache/follow.go", Old: "		f.reading.ended(batch)", New: apply + "		f.reading.ended(batch)"},
		},
	}
	var output string
	for range 6 { // 5 s of a starved machine may not hold a read between a confirmation and its invalidation
		var failed bool
		if output, failed = mutant.Run(t, m); failed && strings.Contains(output, "read what was before a confirmed write") {
			return
		}
	}
	t.Errorf("no fault found:\n%s", output)
}
