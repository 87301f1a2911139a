package linear

import (
	"slices"
	"strings"
	"testing"

	"github.com/levee-go/levee/internal/mutant"
)

// A broken is the library without one of its safeguards, and the tests whose histories show it.
type broken struct {
	edits  []mutant.Edit
	tests  string   // a pattern
	faults []string // what they say, all of it; none: they pass
}

// These tests and faults are those of several mutants.
const (
	ofAll, ofClears, ofTags     = "^TestShortHistoriesAreLinearizable$", "^TestShortHistoriesWithClearsAreLinearizable$", "^TestShortHistoriesWithClearsOfTagsAreLinearizable$"
	ofReleases, ofUnmodified    = "^TestShortHistoriesOfTwoReleasesAreNotStale$", "^TestShortHistoriesOfUnmodifiedValuesAreLinearizable$"
	ofNested, ofFailing         = "^TestShortHistoriesOfNestedCachesAreNotStale$", "^TestShortHistoriesOfFailingWritesAreNotStale$"
	aroundLocal, ofNothingOlder = "^TestShortHistoriesAroundTheLocalTierAreLinearizable$", "^TestShortHistoriesOfNothingOlderAreLinearizable$"
	ofRows                      = "^TestRowsAndNullsOfManyCachesAreLinearizable$"
)

var (
	disorder = []string{"not linearizable"}
	inBoth   = []string{"FAIL: TestShortHistoriesAreLinearizable/" + kinds[0], "FAIL: TestShortHistoriesAreLinearizable/" + kinds[1]}
)

var (
	// A commit publishes whether or not its lease still stands, and an invalidation
	// takes no lease away.
	commitUnasked = []mutant.Edit{
		{File: "internal/fleet/scripts/commit.lua", Old: "if redis.pcall('HGET', KEYS[2], 't') ~= ARGV[1] then", New: "if false then"},
		{File: "internal/fleet/scripts/invalidate.lua", Old: "redis.call('DEL', KEYS[2])", New: ""},
	}
	// A value that Redis refused to publish is an answer, instead of being loaded again.
	keepRefused = []mutant.Edit{
		{File: "internal/rebuild/run.go", Old: "return r.overtaken < maxOvertaken", New: "return false"},
	}
	// A flight's result is for all who joined it, however late.
	joinAny = []mutant.Edit{mutant.JoinAny}
	// What was loaded beside a writer is an answer, whatever has happened since.
	besideUnasked = []mutant.Edit{
		{File: "internal/rebuild/rebuild.go", Old: "beside = &besideLoad{r.joined, r.Mark, r.ends}", New: "return e.besideWriter(r, &besideLoad{r.flight.Decide(), r.Mark, r.ends}), nil"},
	}
	// Nobody can join a flight any more when its value is about to be published.
	leaveBeforeCommit = mutant.LeaveEarly
	// A value carries the epoch of the end of its load.
	epochOfTheEnd = []mutant.Edit{
		{File: "cache/load.go", Old: "life: life{epoch: epoch}}\n	if", New: "life: life{epoch: l.fleet.LoadEpoch()}}\n	if"},
	}
	// Messages of other processes take their time, or a local tier would be right all the time.
	// That alone is no fault of reads that go around it.
	slowMessages = mutant.Edit{
		File: "cache/cache.go", Old: "Invalidated: func(id string) { c.local.Delete(id); c.flights.Forget(id) },",
		New: "Invalidated: func(id string) { time.AfterFunc(3*time.Millisecond, func() { c.local.Delete(id) }) },",
	}
)

// Each of these is the protocol with a safeguard left out, down to the recipe that everybody
// writes. If the histories could not tell them from the whole one, they would prove nothing.
func TestHistoriesNeedEachSafeguard(t *testing.T) {
	if len(kinds) != len(inBoth) {
		t.Fatalf("there are %d kinds of histories", len(kinds))
	}
	one := func(file, old, new string) []mutant.Edit { return []mutant.Edit{{File: file, Old: old, New: new}} }
	const (
		drop  = "		errs := s.drop(ctx, chunk, h, s.replicas())\n"
		apply = "			if err := f.apply(ctx, batch); err != nil {\n				return err\n			}\n"
		store = "		if err := f.store(ctx, stream); err != nil {\n			return err\n		}\n"
	)
	mutant.Each(t, map[string]broken{
		"a mutex that guards nothing but the load":     {slices.Concat(commitUnasked, joinAny), ofAll, inBoth},
		"a refused value is answered to everybody":     {slices.Concat(keepRefused, joinAny), ofAll, inBoth},
		"callers may join after the invalidation":      {joinAny, ofAll, inBoth},
		"callers may join until the publication":       {slices.Concat(leaveBeforeCommit, joinAny), ofAll, inBoth},
		"a load beside a writer answers after its end": {besideUnasked, ofAll, inBoth},

		// Two releases: what keeps them apart and together.
		"a write drops the values of its own schema": {one("internal/fleet/store.go",
			"append(s.keys(id), s.names.Value(s.space.Schema+1, id))\n	if s.space.Schema > 0 {", "s.keys(id)\n	if false {"), ofReleases, disorder},
		"each schema has a lease": {one("internal/fleet/store.go",
			"{ return []string{s.key(id), s.names.Lease(id)} }", "{ return []string{s.key(id), s.key(id) + \":lock\"} }"), ofReleases, disorder},

		// Clear and ClearTags.
		"a load from before a Clear is published for those who joined": {one("internal/rebuild/rebuild.go",
			"if !e.Owner.Keep(r, Until{}) {", "if e.Owner.Keep(r, Until{}); false {"), ofClears, disorder},
		"a value carries the epoch of the end of its load": {epochOfTheEnd, ofClears, disorder},
		"a value from Redis counts whatever its epoch": {one("cache/values.go",
			"if v.fleet.Cleared(e.epoch, e.tags()) {", "if false {"), ofClears, disorder},
		"a local hit is not asked for its tags": {one("cache/local.go",
			"e.more.looked.Load() == clears", "e.more.looked.Load() <= clears"), ofTags, disorder},
		"what another caller has filled is not asked for its tags": {one("cache/read.go",
			"kind == tier.Value && c.values.cleared(e):", "kind == tier.Value && false:"), ofTags, disorder},
		"a value carries the latest clear of a tag at the end of its load": {epochOfTheEnd, ofTags, disorder},
		"a value counts though it has expired": {one("cache/stale.go",
			"	case e.expired:\n		return fallback\n", ""), ofTags, disorder},
		"who clears does not take note": {one("internal/fleet/clears.go",
			"	if present.latest > 0 {\n		s.epoch.learn(present)", "	if present.latest > 0 && how == \"clear\" {\n		s.epoch.learn(present)"), ofTags, disorder},

		// What a loader may call unmodified.
		"a load may keep a value that has gone since its caller read it": {one("internal/fleet/scripts/begin.lua",
			"ARGV[3] == 'ask', 0, 'granted'", "ARGV[3] == 'ask', 0, 'stands'"), ofUnmodified, disorder},
		"an unmodified value is published whether or not its lease stands": {commitUnasked, ofUnmodified, disorder},

		// A cluster with a dead node, and degraded loads from a replica that lags. One mutant has
		// both; neither touches what the other's histories are about.
		"the confirmation of one node is that of all, and a degraded load fills for the whole local life": {
			[]mutant.Edit{
				{File: "internal/fleet/write.go", Old: drop, New: drop + "		if slices.Contains(errs, nil) {\n			clear(errs)\n		}\n"},
				{File: "cache/owner.go", Old: "longest = maxUnconfirmed", New: "longest = time.Hour"},
			},
			"^(TestNoReadIsStaleThoughANodeOfAClusterIsDead|TestADegradedLoadOfALaggingReplicaDoesNotStay)$",
			[]string{"operations read what was before a write", "operations read a row that must have ended"},
		},

		"a follower of a feed confirms too early": {[]mutant.Edit{
			{File: "cache/internal/follow/follow.go", Old: apply, New: ""},
			{File: "cache/internal/follow/follow.go", Old: store, New: "		f.newest = place{f.batch, batch.Position}\n" + store + apply},
		}, "^TestShortHistoriesOfAFeedAreNotStale$", disorder},

		// A filter that processes share. Each of these forgets a row somewhere: in another process, in the
		// one that has added it, in a copy that was loaded meanwhile, in a Rebuild.
		"a process does not learn what others have added": {one("bloom/add.go",
			"delete(s.own, number)\n		for _, t := range s.fed {", "delete(s.own, number)\n		for _, t := range s.fed[:0] {"), ofRows, disorder},
		"a process learns what it has added from the log": {one("bloom/add.go",
			"= h\n		for _, t := range s.fed {", "= h\n		for _, t := range s.fed[:0] {"), ofRows, disorder},
		"a copy has what is in its snapshot and not what came after": {one("bloom/snapshot.go",
			"		t.addAll(part.hashes)", "		_ = part"), ofRows, disorder},
		"a Rebuild has what its scan has found": {one("bloom/sharedrebuild.go",
			"		r.next.addAll(part.hashes)", ""), ofRows, disorder},

		// A nested load takes what another has loaded before the write.
		"a nested caller joins however late": {joinAny, ofNested, disorder},
		"a refused page is answered":         {slices.Concat(keepRefused, joinAny), ofNested, disorder},

		// A Write leaves what was there before to answer.
		"a Write that has succeeded leaves a fallback": {one("internal/fleet/write.go", "			h.soft = 0\n", ""), ofFailing, disorder},
		"a clear of tags leaves a fallback": {one("cache/writer.go",
			"if succeeded || w.fallback == 0 {", "if w.fallback == 0 {"), ofFailing, disorder},
		"a Write that fails leaves tags as they are": {one("cache/writer.go",
			"end := w.fleet.ExpireTags\n", "end := func(context.Context, ...uint32) error { return nil }\n"), ofFailing, disorder},
		"a Write does not mark what it expires": {one("internal/fleet/scripts/common.lua", `head .. '\1' ..`, `head .. '\0' ..`), ofFailing, disorder},

		// Rules of a reader, and the local tier.
		"none but that messages are slow": {[]mutant.Edit{slowMessages}, aroundLocal, nil},
		"what the local tier has suits everybody": {append(one("cache/lookup.go",
			"w.SkipLocal && f.tier == TierLocal", "false"), slowMessages), aroundLocal, disorder},
		"an answer of a flight suits everybody": {append(one("cache/read.go",
			"case err == nil && !answer.suits(l.want):", "case false:"), slowMessages), ofNothingOlder, disorder},
		"a value is as old as the end of its load": {append(one("cache/entry.go",
			"time.UnixMilli(e.created - int64(e.cost))", "time.UnixMilli(e.created)"), slowMessages), ofNothingOlder, disorder},
		"a read marks the local tier after it has read": {one("cache/read.go",
			"c.local.keep(l.mark, l.key,", "c.local.keep(c.local.Mark(l.id), l.key,"), "^TestAGetInABubbleSeesNothingOlder$", []string{"a Get that began after Invalidate"}},
	}, func(t testing.TB, b broken) {
		env := []string{insistent + "=1"}
		if b.faults == nil {
			env = nil
		}
		output, failed := mutant.Run(t, mutant.Of{Package: "./internal/linear", Test: b.tests, Env: env, Edits: b.edits})
		if failed != (b.faults != nil) {
			t.Errorf("it failed: %v\n%s", failed, output)
		}
		for _, fault := range b.faults {
			if !strings.Contains(output, fault) {
				t.Errorf("no %q:\n%s", fault, output)
			}
		}
	})
}
