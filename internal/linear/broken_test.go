package linear

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/levee-go/levee/internal/mutant"
)

// insistent is set in a mutant: there the tests below go on until they find the fault.
const insistent = "LEVEE_LINEAR_MUTANT"

// Many short histories find what is badly broken sooner than one long one: the worse a
// history is, the longer it takes to rule an order out.
func TestShortHistoriesAreLinearizable(t *testing.T) { shortOrders(t, kinds...) }

// shortOrders fails for a short history that is surely not linearizable. A stale read shows
// it at once, however slow the machine. Few keys may be left without a verdict: a check that
// gives up finds nothing.
func shortOrders(t *testing.T, kinds ...string) {
	judged, unknown := 0, 0
	for _, kind := range kinds {
		shortHistories(t, func(history []op) bool {
			if isStale(history) {
				return true
			}
			v := judge(register, ordered(kind, history), time.Second)
			judged, unknown = judged+v[porcupine.Ok]+v[porcupine.Unknown], unknown+v[porcupine.Unknown]
			return v[porcupine.Illegal] > 0
		}, kind)
	}
	t.Logf("%d of %d keys could not be judged", unknown, judged)
	if unknown*20 > judged && !t.Failed() {
		t.Error("these are too many")
	}
}

func isStale(history []op) bool { return len(stale(history)) > 0 }

// shortHistories records a few short histories of each kind, or, in a mutant, as many as
// may be needed to meet a fault.
func shortHistories(t *testing.T, wrong func([]op) bool, kinds ...string) {
	histories := 2
	if os.Getenv(insistent) != "" {
		histories = 50
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			for n := range histories {
				if wrong(simulate(t, kind)) {
					t.Fatalf("history %d is not linearizable, or stale", n)
				}
			}
		})
	}
}

// A rolling deployment and its rollback, see TestNoReadIsStaleDuringADeployment.
func TestShortHistoriesOfTwoReleasesAreNotStale(t *testing.T) { shortHistories(t, isStale, "releases") }

// The same with writers who clear the whole cache.
func TestShortHistoriesWithClearsAreLinearizable(t *testing.T) { shortOrders(t, "clears") }

// The same with a loader that is told what it replaces, and a source that calls it unmodified
// though it is not.
func TestShortHistoriesOfUnmodifiedValuesAreLinearizable(t *testing.T) { shortOrders(t, "unmodified") }

// The same with writers who clear the tags of a key, and with a local tier in one process of the two.
func TestShortHistoriesWithClearsOfTagsAreLinearizable(t *testing.T) { shortOrders(t, "tags") }

// The same with writers who know nothing of the cache, which follows a feed.
func TestShortHistoriesOfAFeedAreNotStale(t *testing.T) { shortHistories(t, isStale, "feeds") }

// These edits make the caches and groups of a mutant.
var (
	// A commit publishes whether or not its lease still stands, and an invalidation
	// takes no lease away.
	commitUnasked = []mutant.Edit{
		{File: "internal/fleet/scripts/commit.lua", Old: "if redis.pcall('HGET', KEYS[2], 't') ~= ARGV[1] then", New: "if false then"},
		{File: "internal/fleet/scripts/invalidate.lua", Old: "redis.call('DEL', KEYS[2])", New: ""},
	}
	// A value that Redis refused to publish is an answer, instead of being loaded again.
	keepRefused = []mutant.Edit{
		{File: "cache/publish.go", Old: "case outcome.Err != nil || outcome.Published || j.overtaken == maxOvertaken:", New: "case true:"},
		{File: "mutexrebuild/rebuild.go", Old: "return data, outcome.Published || outcome.Err != nil, nil", New: "return data, true, nil"},
	}
	// A flight's result is for all who joined it, however late.
	joinAny = []mutant.Edit{mutant.JoinAny}
	// What was loaded beside a writer is an answer, whatever has happened since.
	besideUnasked = []mutant.Edit{
		{File: "cache/beside.go", Old: "		brought = append(brought, j)\n", New: "		c.finishBeside(j, j.beside, time.Now())\n"},
		{File: "cache/beside.go", Old: "	var brought []*job[K, V]\n	for", New: "	brought := jobs[:0]\n	for"},
		{File: "cache/beside.go", Old: "j.flight.TakeBack(load.at)", New: "j.flight.Decide()"},
		{File: "mutexrebuild/rebuild.go", Old: "			beside = data\n", New: "			f.Decide()\n			return data, nil\n"},
	}
	// Nobody can join a flight any more when its value is about to be published.
	leaveBeforeCommit = append([]mutant.Edit{
		{File: "cache/publish.go", Old: "		j.flight.Decide()\n	}\n	failpoint.At(\"commit\")", New: "		j.flight.LeaveEarly()\n	}\n	failpoint.At(\"commit\")"},
	}, mutant.LeaveEarly...)
)

// Each of these is the protocol with a safeguard left out, down to the recipe that
// everybody writes. If the histories could not tell them from the whole one, they would
// prove nothing.
func TestProtocolsWithoutTheirSafeguardsAreCaught(t *testing.T) {
	mutant.Each(t, map[string][]mutant.Edit{
		"a mutex that guards nothing but the load":     slices.Concat(commitUnasked, joinAny),
		"a refused value is answered to everybody":     slices.Concat(keepRefused, joinAny),
		"callers may join after the invalidation":      joinAny,
		"callers may join until the publication":       slices.Concat(leaveBeforeCommit, joinAny),
		"a load beside a writer answers after its end": besideUnasked,
	}, func(t testing.TB, edits []mutant.Edit) {
		output, _ := mutant.Run(t, mutant.Of{
			Package: "./internal/linear", Test: "^TestShortHistoriesAreLinearizable$", Env: []string{insistent + "=1"}, Edits: edits,
		})
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

// isCaught fails unless the short histories of a test show that the library is not whole with
// edits.
func isCaught(t testing.TB, test string, edits ...mutant.Edit) {
	t.Helper()
	output, failed := mutant.Run(t, mutant.Of{
		Package: "./internal/linear", Test: test, Env: []string{insistent + "=1"}, Edits: edits,
	})
	if !failed || !strings.Contains(output, "not linearizable") {
		t.Errorf("histories without a fault found:\n%s", output)
	}
}

// The same for what keeps two releases apart and together.
func TestReleasesThatDoNotMindEachOtherAreCaught(t *testing.T) {
	mutant.Each(t, map[string]mutant.Edit{
		"a write drops the values of its own schema": {
			File: "internal/fleet/store.go",
			Old:  "append(s.keys(id), s.names.Value(s.space.Schema+1, id))\n	if s.space.Schema > 0 {",
			New:  "s.keys(id)\n	if false {",
		},
		"each schema has a lease": {
			File: "internal/fleet/store.go",
			Old:  "{ return []string{s.key(id), s.names.Lease(id)} }",
			New:  "{ return []string{s.key(id), s.key(id) + \":lock\"} }",
		},
	}, func(t testing.TB, edit mutant.Edit) {
		isCaught(t, "^TestShortHistoriesOfTwoReleasesAreNotStale$", edit)
	})
}

// The same for what a Clear stands on.
func TestClearsWithoutTheirSafeguardsAreCaught(t *testing.T) {
	mutant.Each(t, map[string]mutant.Edit{
		"a load from before a Clear is published for those who joined": {
			File: "cache/publish.go", Old: " && !c.cleared(j.loaded.entry): // else", New: ": // else",
		},
		"a value carries the epoch of the end of its load": {
			File: "cache/load.go", Old: "life: life{epoch: epoch}}\n	if", New: "life: life{epoch: c.fleet.LoadEpoch()}}\n	if",
		},
		"a value from Redis counts whatever its epoch": {
			File: "cache/stale.go", Old: "if c.fleet.Cleared(e.epoch, e.tags()) {", New: "if false {",
		},
	}, func(t testing.TB, edit mutant.Edit) {
		isCaught(t, "^TestShortHistoriesWithClearsAreLinearizable$", edit)
	})
}

// The same for what may be called unmodified.
func TestUnmodifiedValuesWithoutTheirSafeguardsAreCaught(t *testing.T) {
	mutant.Each(t, map[string][]mutant.Edit{
		"a load may keep a value that has gone since its caller read it": {
			{File: "internal/fleet/scripts/begin.lua", Old: "ARGV[3] == 'ask', 0, 'granted'", New: "ARGV[3] == 'ask', 0, 'stands'"},
		},
		"an unmodified value is published whether or not its lease stands": commitUnasked,
	}, func(t testing.TB, edits []mutant.Edit) {
		isCaught(t, "^TestShortHistoriesOfUnmodifiedValuesAreLinearizable$", edits...)
	})
}

// The same for what a ClearTags stands on.
func TestClearsOfTagsWithoutTheirSafeguardsAreCaught(t *testing.T) {
	mutant.Each(t, map[string]mutant.Edit{
		"a local hit is not asked for its tags": {
			File: "cache/clear.go", Old: "e.more.looked.Load() == clears", New: "e.more.looked.Load() <= clears",
		},
		"what another caller has filled is not asked for its tags": {
			File: "cache/reader.go", Old: "kind == tier.Value && c.cleared(e):", New: "kind == tier.Value && false:",
		},
		"a value carries the latest clear at the end of its load": {
			File: "cache/load.go", Old: "life: life{epoch: epoch}}\n	if", New: "life: life{epoch: c.fleet.LoadEpoch()}}\n	if",
		},
		"a value counts though it has expired": {
			File: "cache/stale.go", Old: "	case e.expired:\n		return fallback\n", New: "",
		},
		"who clears does not take note": {
			File: "internal/fleet/clears.go", Old: "	if present.latest > 0 {\n		s.epoch.learn(present)", New: "	if present.latest > 0 && how == \"clear\" {\n		s.epoch.learn(present)",
		},
	}, func(t testing.TB, edit mutant.Edit) {
		isCaught(t, "^TestShortHistoriesWithClearsOfTagsAreLinearizable$", edit)
	})
}

// The same for a cluster with a dead node, and for degraded loads from a replica that lags:
// the confirmation of one node is that of all, and such a load fills for the whole local
// life. One mutant has both; neither touches what the other's histories are about.
func TestInvalidationsAndLoadsWithoutTheirSafeguardsAreCaught(t *testing.T) {
	const drop = "		errs := s.drop(ctx, chunk, h, s.replicas())\n"
	output, _ := mutant.Run(t, mutant.Of{
		Package: "./internal/linear", Env: []string{insistent + "=1"},
		Test: "^(TestNoReadIsStaleThoughANodeOfAClusterIsDead|TestADegradedLoadOfALaggingReplicaDoesNotStay)$",
		Edits: []mutant.Edit{
			{File: "internal/fleet/write.go", Old: drop, New: drop + "		if slices.Contains(errs, nil) {\n			clear(errs)\n		}\n"},
			{File: "cache/rebuild.go", Old: "size, maxUnconfirmed, time", New: "size, time.Hour, time"},
		},
	})
	for _, fault := range []string{"operations read what was before a write", "operations read a row that must have ended"} {
		if !strings.Contains(output, fault) {
			t.Errorf("no %s:\n%s", fault, output)
		}
	}
}

// The same for a follower of a feed.
func TestAFollowerThatConfirmsTooEarlyIsCaught(t *testing.T) {
	const apply = "		if err := f.insist(ctx, func() error { return f.apply(ctx, batch) }); err != nil {\n			return err\n		}\n"
	isCaught(t, "^TestShortHistoriesOfAFeedAreNotStale$",
		mutant.Edit{File: "cache/internal/follow/follow.go", Old: apply, New: ""},
		mutant.Edit{File: "cache/internal/follow/follow.go", Old: "		f.reading.ended(batch)", New: apply + "		f.reading.ended(batch)"})
}

// The same for a filter that processes share. Each of these forgets a row somewhere: in another
// process, in the one that has added it, in a copy that was loaded meanwhile, in a Rebuild.
func TestFiltersWithoutTheirSafeguardsAreCaught(t *testing.T) {
	mutant.Each(t, map[string]mutant.Edit{
		"a process does not learn what others have added": {
			File: "bloom/add.go", Old: "delete(s.own, number)\n		for _, t := range s.fed {", New: "delete(s.own, number)\n		for _, t := range s.fed[:0] {",
		},
		"a process learns what it has added from the log": {
			File: "bloom/add.go", Old: "= h\n		for _, t := range s.fed {", New: "= h\n		for _, t := range s.fed[:0] {",
		},
		"a copy has what is in its snapshot and not what came after": {
			File: "bloom/snapshot.go", Old: "		t.addAll(part.hashes)", New: "		_ = part",
		},
		"a Rebuild has what its scan has found": {
			File: "bloom/sharedrebuild.go", Old: "		r.next.addAll(part.hashes)", New: "",
		},
	}, func(t testing.TB, edit mutant.Edit) {
		isCaught(t, "^TestRowsAndNullsOfManyCachesAreLinearizable$", edit)
	})
}
