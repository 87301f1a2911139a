package model

import (
	"os"
	"strings"
	"testing"
)

// What a story ends with.
const (
	old     = "and 2 was promised"
	older   = "and 3 was promised"
	closed  = "a hold stands whose writer has lifted it"
	beside  = "is stored while writer"
	robbed  = "ends the lease of another load"
	lost    = "gets an error though no writer has succeeded"
	forever = "nobody can go on"
)

// safeguards are what the protocol does to keep its promises, each with a scenario that goes wrong
// without it.
var safeguards = []struct {
	name, in string
	off      off
	breaks   string
}{
	// leases
	{"A commit compares the token", "an Invalidate of what is being loaded", off{tokenCompared: true}, old},
	{"A token names one acquisition", "a load that is given up", off{tokenPerLoad: true}, old},
	{"An invalidation ends the lease", "an Invalidate of what is being loaded", off{invalidateEndsLease: true}, old},
	{"A lease has an end", "a reader that is killed", off{leaseEnds: true}, forever},
	{"An abort compares the token", "leases that end", off{abortCompares: true}, robbed},
	{"Set takes the lease first and stores second", "a Set", off{setHasTwoSteps: true}, older},
	{"Refresh takes the lease before it loads", "a Refresh", off{refreshTakes: true}, old},
	// holds
	{"A hold ends the lease", "a Write of what is being loaded", off{holdEndsLease: true}, beside},
	{"A hold refuses leases", "a Write", off{holdRefuses: true}, beside},
	{"A Write lifts only its own hold", "two Writes", off{liftsOwn: true}, beside},
	{"A lift leaves a note", "a Write with a timeout", off{liftLeavesNote: true}, closed},
	{"An abort leaves notes alone", "a Write with a timeout", off{abortKeepsNotes: true}, closed},
	{"An unconfirmed hold gets a note also if its lift finds it", "a Write with a timeout", off{foundLeavesNote: true}, closed},
	{"A Write expires first", "a Write", off{expiresFirst: true}, lost},
	{"A Write drops last", "a Write", off{dropsLast: true}, old},
	{"A failed Write expires again", "a Write with a timeout", off{failureExpires: true}, old},
	{"A load during a write is confirmed", "a Write whose hold ends", off{asksAgain: true}, old},
	{"Such a load is not kept beyond the hold", "a Write whose process is killed", off{besideEnds: true}, old},
	{"Nor beyond the hold of ReplicaLag", "a Write, and replicas that lag", off{besideEnds: true}, old},
	{"ReplicaLag is a hold", "a Write, and replicas that lag", off{lagHolds: true}, old},
	// flights
	{"Callers have numbers", "an Invalidate of what is being loaded", off{joinNumber: true}, old},
	{"An unstored load is taken back", "a load that is given up", off{takeBack: true}, old},
	{"An answer waits for its commit", "a Write whose hold ends", off{answerWaits: true}, old},
	// local tiers
	{"A fill carries its mark", "an Invalidate of what is stored", off{mark: true}, old},
	{"Redis first, memory second", "an Invalidate of what is stored", off{redisFirst: true}, old},
	{"The heartbeat", "an Invalidate, and a dead link", off{heartbeat: true}, old},
	{"A gap flushes the memory", "an Invalidate, and a dead link", off{gapForgets: true}, old},
	// Clear
	{"A value has the epoch from before its load", "a Clear", off{epochFirst: true}, old},
	{"A load overtaken by a Clear is taken back", "a Clear", off{clearedLoads: true}, old},
	{"The message of a Clear makes a process read the epoch", "a Clear", off{epochAwaited: true}, old},
	{"So does a gap", "a Clear, and a dead link", off{gapReadsEpoch: true}, old},
	// what is not confirmed
	{"A pending invalidation blocks its key", "an Invalidate that is not confirmed", off{blocks: true}, old},
	{"An attempt confirms only earlier requests", "two Invalidates that are not confirmed", off{asksSince: true}, older},
	{"Too many become one Clear", "more Invalidates than there is room for", off{becomesClear: true}, old},
	// pages
	{"A loader reads past the local tier", "a Write of a row and its page", off{partsPastLocal: true}, old},
	{"And reads the epoch with what it finds in Redis", "a Clear of rows, and then an Invalidate of a page", off{partsReadEpoch: true}, old},
	{"A page of an expired part is not stored", "a Write of a row and its page", off{staleParts: true}, old},
	{"All keys are dropped before one is opened", "a Write of a row and its page, not confirmed", off{dropsAll: true}, old},
	{"And all drops are confirmed", "a Write of a row and its page, not confirmed", off{opensLast: true}, old},
}

// The page tells of the safeguards under the names that they have here.
func TestThePageHasEachSafeguard(t *testing.T) {
	page, err := os.ReadFile("../../../docs/internals/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range safeguards {
		if !strings.Contains(string(page), "\n| "+s.name+" | ") {
			t.Errorf("protocol.md has no row for %q", s.name)
		}
	}
	_, rows, _ := strings.Cut(string(page), "## The safeguards")
	if n := strings.Count(rows, "\n| ") - strings.Count(rows, " | without it |") - strings.Count(rows, "(not in the model: "); n != len(safeguards) {
		t.Errorf("protocol.md has %d rows, the model has %d safeguards", n, len(safeguards))
	}
}
